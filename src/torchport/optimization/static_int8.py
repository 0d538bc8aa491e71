"""Static int8: QuantizeLinear and DequantizeLinear around each layer, with ranges from calibration data.

Both quantizers write the same form, which both engines run. They are given one sample at a time: ONNX Runtime's
calibration would keep the outputs of all of them. SmoothQuant and bias correction of nncf are left off: with them the
cosine of a ViT falls from 0.9999 to 0.96 in OpenVINO, and weights are no longer those of the float model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchport.machine import cpu_flags
from torchport.optimization.scheme import Scheme, has_fast_int8
from torchport.process import silence

_PERCENTILE = 99.999


class Samples:
    """Samples on disk, as the quantizers read them: by position, in a loop, and one after the other."""

    def __init__(self, read: Any, names: Sequence[str]) -> None:
        self._read, self._names = read, tuple(names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Any:
        return self._read(self._names[index])

    def __iter__(self) -> Iterator[Any]:
        return (self._read(name) for name in self._names)


class _One:
    """A reader of one sample, as ONNX Runtime wants it."""

    def __init__(self, feeds: Any) -> None:
        self._feeds = feeds

    def get_next(self) -> Any:
        given, self._feeds = self._feeds, None
        return given


def by_onnxruntime(
    source: Path, target: Path, samples: Samples, scheme: Scheme, libraries: Sequence[str], folder: Path
) -> None:
    """Quantize with onnxruntime.quantization."""
    from onnxruntime.quantization import CalibrationMethod, QuantType, calibrate, quantize_static, registry

    methods = {
        "min-max": (calibrate.MinMaxCalibrater, CalibrationMethod.MinMax, {}),
        "percentile": (calibrate.PercentileCalibrater, CalibrationMethod.Percentile, {"percentile": _PERCENTILE}),
        "entropy": (calibrate.EntropyCalibrater, CalibrationMethod.Entropy, {}),
    }
    kind, method, options = methods[scheme.calibration]
    large = any(source.parent.glob(f"{source.stem}.*.data"))
    operators = list({*registry.QLinearOpsRegistry, *registry.QDQRegistry})
    symmetric = bool(scheme.symmetric)
    with silence():
        calibrator = kind(
            source,
            operators,
            augmented_model_path=str(folder / "augmented.onnx"),
            use_external_data_format=large,
            **options,
        )
        calibrator.augment_graph()
        calibrator.infer_session = _session(folder / "augmented.onnx", libraries)
        for feeds in samples:
            calibrator.collect_data(_One(feeds))
        ranges = folder / "ranges.json"
        ranges.unlink(missing_ok=True)
        calibrate.save_tensors_data(calibrator.compute_data(), ranges)
        quantize_static(
            source,
            target,
            None,
            per_channel=scheme.per_channel,
            reduce_range=not has_fast_int8(cpu_flags()),
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=method,
            use_external_data_format=large,
            extra_options={"ActivationSymmetric": symmetric},
            calibration_cache_path=ranges,
        )


def _session(path: Path, libraries: Sequence[str]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # all tensors must be there
    for library in libraries:
        options.register_custom_ops_library(library)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def by_nncf(source: Path, target: Path, samples: Samples, scheme: Scheme) -> None:
    """Quantize with nncf."""
    import nncf
    import onnx
    from nncf.quantization import advanced_parameters as advanced
    from nncf.quantization.range_estimator import (
        AggregatorType,
        RangeEstimatorParameters,
        RangeEstimatorParametersSet,
        StatisticsCollectorParameters,
    )

    nncf.set_log_level(logging.ERROR)
    least_error = StatisticsCollectorParameters(aggregator_type=AggregatorType.HISTOGRAM)
    ranges = {
        "min-max": RangeEstimatorParametersSet.MINMAX,
        "percentile": RangeEstimatorParametersSet.MEAN_QUANTILE,
        "mse": getattr(RangeEstimatorParametersSet, "HISTOGRAM", RangeEstimatorParameters(least_error, least_error)),
    }
    model = onnx.load(source)
    presets = {
        None: None,
        True: nncf.QuantizationPreset.PERFORMANCE,
        False: nncf.QuantizationPreset.MIXED,
    }
    attention = {"LayerNormalization", "Softmax"} <= {node.op_type for node in model.graph.node}
    with silence():
        found = nncf.quantize(
            model,
            nncf.Dataset(samples),
            subset_size=len(samples),
            preset=presets[scheme.symmetric],
            model_type=nncf.ModelType.TRANSFORMER if attention else None,
            target_device=nncf.TargetDevice.CPU,
            advanced_parameters=advanced.AdvancedQuantizationParameters(
                disable_bias_correction=True,
                smooth_quant_alphas=advanced.AdvancedSmoothQuantParameters(convolution=-1, matmul=-1),
                weights_quantization_params=None
                if scheme.per_channel
                else advanced.QuantizationParameters(per_channel=False),
                activations_range_estimator_params=ranges[scheme.calibration],
            ),
        )
    onnx.save(found, target)
