"""tp.quantize"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.benchmark.benchmarking import bench
from torchport.benchmark.feeds import feeds_for, inputs_of
from torchport.benchmark.preparation import Common, model_file
from torchport.conversion.options import Progress
from torchport.engines.custom_operators import own_nodes
from torchport.engines.options import open_options
from torchport.engines.registry import DEFAULT
from torchport.engines.session import Session, open_session
from torchport.errors import OptionError, QuantizationError
from torchport.files import onnx_files
from torchport.files.filesystem import check_target
from torchport.irtools.metadata import origin_of, read_bounds
from torchport.irtools.traversal import all_nodes
from torchport.irtools.types import operator_name
from torchport.machine import cpu_flags
from torchport.optimization.accuracy import Accuracy, HeldOut, Limits, Metric
from torchport.optimization.calibration import CalibrationData, given_data, made_up_data
from torchport.optimization.dynamic_int8 import OPERATORS
from torchport.optimization.float_layers import Found, QdqModel, QuantizedModel, fewest_in_float
from torchport.optimization.preparation import prepared, restore
from torchport.optimization.quantization_report import Layer, Quantized, Speed, decibels
from torchport.optimization.quantizer_process import QuantizerProcess
from torchport.optimization.scheme import (
    DYNAMIC,
    FLOAT16,
    ONNXRUNTIME,
    STATIC,
    Scheme,
    Wishes,
    expected_gain,
    schemes_for,
)
from torchport.results import Finding, to_json

_RANKING = 0.4  # of the limit of time: for the ranking of layers
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "Attention")

Model = str | os.PathLike[str] | ir.Model


def quantize(
    model: Model,
    data: Any = None,
    *,
    scheme: str = STATIC,
    engine: str = DEFAULT,
    output: str | os.PathLike[str] | None = None,
    max_drop: float | str | Mapping[str, Any] = 0.01,
    metric: Metric | None = None,
    calibration: str | None = None,
    per_channel: bool = True,
    symmetric: bool | None = None,
    block: int | None = None,
    method: str | None = None,
    at: Mapping[str, int] | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    seconds: float = 2.0,
    limit: float = 900.0,
    memory: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Quantized:
    """Quantize a model, and prove on samples that were held out that it loses no more than was allowed.

    Where the whole model loses more, the layers that hurt most are left in float, as few as possible. The time is
    measured beside the float model. Nothing is saved that loses more, or that is slower.

    Args:
        model: a float ONNX file or a model in memory.
        data: calibration data: a folder of ``.npz``, recorded calls, or an iterable of dicts of arrays. Every fourth
            sample is held out. Made up from the model's shapes if None, with a warning.
        scheme: ``"static-int8"``, ``"dynamic-int8"``, ``"int8-weights"``, ``"int4-weights"`` or ``"float16"``.
        engine: what the model is quantized for, measured in and held against the float model in.
        output: the file to save; nothing is saved if None.
        max_drop: a part of 1, ``"1%"``, or limits by kind: ``{"cosine": 0.001, "sqnr": 30, "top1": "2%"}``. With a
            metric, how much that may drop.
        metric: called with the outputs and the sample, both arrays by name; returns a number, larger is better. Samples
            may then hold other arrays than inputs, labels say.
        calibration: how ranges are found: min-max, percentile, entropy or mse. If None the first two are tried.
        per_channel: each output channel of a weight has a scale of its own.
        symmetric: the zero of activations is at 0, or of weights in blocks; None for the quantizer's own choice.
        block: the number of weights that share a scale, where only weights are quantized.
        method: how weights are rounded to int4: rtn, hqq or gptq.
        at: sizes of dynamic dimensions for made-up data, ``{"batch": 8}``.
        threads: for the engine to compute with.
        options: what only this engine takes; docs/engines.md lists them.
        libraries: operator libraries that the model needs, by path.
        seconds: to measure each of both models for; 0 to measure no time.
        limit: the seconds that the quantizer's process may take in all, and nearly that for the search.
        memory: the bytes of address space that the quantizer's process may take; None for no limit.
        seed: for made-up data.
        progress: called with one line at each step.

    Raises:
        QuantizationError: the model is quantized already, nothing of it can be quantized within the limits, or the
            result is slower.

    Example:
        >>> print(tp.quantize("model.onnx", "samples/", output="int8.onnx", max_drop="1%"))
    """
    start = time.monotonic()
    limits = Limits.read(max_drop, has_metric=metric is not None)
    schemes = schemes_for(scheme, engine, Wishes(calibration, per_channel, symmetric, block, method))
    open_options(engine, threads=threads, settings=options)
    if output is not None:
        check_target(output)
    if not (0 <= seconds < float("inf") and limit > 0):
        raise OptionError(f"{seconds:g} seconds, within {limit:g}, cannot be meant", next_step="give numbers above 0")
    common = Common.read(libraries, seed=seed, trust=False)
    with contextlib.ExitStack() as stack:
        loaded = onnx_files.as_model(model)
        work = _Work(
            loaded,
            Path(stack.enter_context(model_file(model, loaded))),
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchport-"))),
            (engine, max(one.opset for one in schemes)),
            common,
            {"threads": threads, "options": options, "libraries": common.libraries},
            progress or (lambda text: None),
        )
        quantizer = stack.enter_context(QuantizerProcess(limit=limit, memory=memory))
        samples = work.data(data, at or {}, seed, extras=metric is not None)
        held_out = HeldOut(samples, work.opened(work.path), limits, metric)
        used, found = work.search(schemes, quantizer, samples, held_out, limits, limit)
        speed = work.speed(found, samples, seconds, used)
        result = work.report(used, found, samples, limits, speed)
        shown = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "the model"
        if output is not None:
            work.save(found, used, result, Path(output))
        return dataclasses.replace(
            result,
            model=shown,
            path="" if output is None else os.fspath(output),
            seconds=time.monotonic() - start,
        )


class RequantizedModel(QuantizedModel):
    """A model whose quantizer leaves out the layers that are to stay in float."""

    def __init__(self, layers: Sequence[str], folder: Path, make: Callable[[Path, Collection[str]], None]) -> None:
        self.layers = tuple(layers)
        self._folder, self._make = folder, make
        self._count = 0
        self._whole: Path | None = None

    def without(self, names: Collection[str]) -> Path:
        if not names and self._whole is not None:
            return self._whole
        target = self._folder / f"without{self._count}.onnx"
        self._count += 1
        self._make(target, names)
        self._whole = self._whole if names else target
        return target


def quantizable(model: ir.Model, scheme: Scheme) -> list[str]:
    """Return the layers that a scheme without stored ranges quantizes."""
    if scheme.name == FLOAT16:
        return [str(n.name) for n in model.graph if any(_is_weight(v) for v in n.inputs)]
    operators = OPERATORS if scheme.name == DYNAMIC else ("MatMul", "Gemm")
    return [str(n.name) for n in model.graph if n.op_type in operators and any(_is_weight(v) for v in n.inputs[1:2])]


def _is_weight(value: ir.Value | None) -> bool:
    tensor = value.const_value if value is not None and value.is_initializer() else None
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) > 0


class _Work:
    """A model that is quantized, step by step."""

    def __init__(
        self,
        model: ir.Model,
        path: Path,
        folder: Path,
        target: tuple[str, int],
        common: Common,
        opening: Mapping[str, Any],
        say: Progress,
    ) -> None:
        self.path, self._common = path, common
        self._engine, opset = target
        self._model, self._folder, self._opening, self._say = model, folder, opening, say
        self._prepared = prepared(model, opset)
        self._source = onnx_files.save(self._prepared, folder / "float.onnx", check=False)
        self._findings: list[Finding] = []

    def opened(self, path: Path) -> Session:
        """Open a model in the engine that it is quantized for."""
        return open_session(path, self._engine, **self._opening)

    def data(self, source: Any, at: Mapping[str, int], seed: int, *, extras: bool) -> CalibrationData:
        """Return the samples that were given, or some that are made up."""
        self._say("reading samples")
        folder = self._folder / "samples"
        folder.mkdir()
        infos, bounds = inputs_of(self._model), read_bounds(self._model.metadata_props)
        if source is not None:
            if at:
                raise OptionError("data is given, and sizes to make some at", next_step="leave --at or --data out")
            return given_data(source, infos, bounds, folder, extras=extras)
        [example] = feeds_for(self._model, str(self.path), None, [at], self._common)
        return made_up_data(example, folder, seed)

    # The search

    def search(
        self,
        schemes: Sequence[Scheme],
        quantizer: QuantizerProcess,
        samples: CalibrationData,
        held_out: HeldOut,
        limits: Limits,
        limit: float,
    ) -> tuple[Scheme, Found]:
        """Return the first scheme that is within the limits, else the best one with the fewest layers in float."""

        def measure(path: Path) -> Accuracy:
            return held_out.measure(self.opened(path))

        tried: list[tuple[Scheme, QuantizedModel, Accuracy]] = []
        failures: list[QuantizationError] = []
        for scheme in map(self._able, schemes):
            try:
                quantized = self._quantized(scheme, quantizer, samples)
            except QuantizationError as error:
                failures.append(error)
                continue
            self._say(f"holding {scheme.calibration or scheme.name} against the float model")
            tried.append((scheme, quantized, measure(quantized.without(()))))
            if tried[-1][2].ok:
                break
        if not tried:
            raise failures[0]
        self._findings += [Finding(error.what) for error in failures]
        scheme, quantized, whole = min(tried, key=lambda entry: (not entry[2].ok, entry[2].noise))
        found = fewest_in_float(
            quantized,
            measure,
            lambda path: held_out.noise(self.opened(path)),
            seconds=_RANKING * limit,
            say=self._say,
            whole=whole,
        )
        if found.path is None:
            raise _too_lossy(scheme, whole, limits, found)
        return scheme, found

    def _able(self, scheme: Scheme) -> Scheme:
        """Let ONNX Runtime quantize what nncf cannot open: a model with operators of its own."""
        return dataclasses.replace(scheme, quantizer=ONNXRUNTIME) if own_nodes(self._model) else scheme

    def _quantized(self, scheme: Scheme, quantizer: QuantizerProcess, samples: CalibrationData) -> QuantizedModel:
        self._say(f"quantizing: {scheme}")
        folder = self._folder / f"{scheme.name}-{scheme.calibration}"
        folder.mkdir()
        given = (samples.folder, samples.calibration)
        model: QuantizedModel
        if scheme.name == STATIC:
            target = folder / "quantized.onnx"
            quantizer.static(self._source, target, scheme, given, self._opening["libraries"])
            model = QdqModel(target, self._prepared, folder)
        else:
            model = RequantizedModel(
                quantizable(self._prepared, scheme),
                folder,
                lambda target, left: quantizer.without_ranges(self._source, target, scheme, given, left),
            )
        if not model.layers:
            raise QuantizationError(
                f"the model has no layer that {scheme.name} can quantize",
                where=", ".join(sorted({operator_name(n) for n in all_nodes(self._model)})[:8]),
                next_step="choose another --scheme, or leave it in float",
            )
        return model

    # What it gained

    def speed(self, found: Found, samples: CalibrationData, seconds: float, scheme: Scheme) -> Speed | None:
        """Measure both models beside each other.

        Raises:
            QuantizationError: the quantized one is slower, and speed is what it is for.
        """
        if not seconds:
            return None
        self._say("measuring")
        assert found.path is not None
        table = bench(
            [self.path, found.path],
            engines=[self._engine],
            inputs=samples.inputs(samples.calibration[0]),
            threads=self._opening["threads"],
            options=self._opening["options"],
            libraries=self._opening["libraries"],
            seconds=seconds,
            processes=3,
        )
        if table.interrupted:
            raise KeyboardInterrupt
        rows = [row for row in table.rows if row.median_seconds is not None]
        if len(rows) < 2 or not table.verdicts:
            reason = next((row.reason for row in table.rows if row.reason), "no time was taken")
            raise QuantizationError(
                f"the quantized model could not be measured in {self._engine}: {reason}",
                next_step="try another --engine or --scheme",
            )
        verdict = table.verdicts[0]  # the float model's time as a multiple of the quantized one's
        medians = [float(row.median_seconds or 0) for row in rows]
        speed = Speed(verdict.ratio, verdict.low, verdict.high, verdict.differs, *medians)
        if speed.slower and scheme.is_for_speed:
            raise QuantizationError(
                f"the quantized model is slower in {self._engine}: {speed}",
                next_step="try another --engine or --scheme, or leave it in float; --seconds 0 saves it unmeasured",
            )
        return speed

    # The result

    def report(
        self, scheme: Scheme, found: Found, samples: CalibrationData, limits: Limits, speed: Speed | None
    ) -> Quantized:
        assert found.path is not None
        quantized = onnx_files.load(found.path)
        return Quantized(
            "",
            "",
            str(scheme),
            self._engine,
            tuple(self._layers(scheme, found, quantized)),
            found.accuracy,
            limits,
            expected_gain(scheme, self._engine, cpu_flags()),
            speed,
            onnx_files.weight_bytes(self._model),
            onnx_files.weight_bytes(quantized),
            len(samples.calibration) if scheme.needs_data else 0,
            found.tries,
            0.0,
            (*samples.findings, *self._findings),
        )

    def _layers(self, scheme: Scheme, found: Found, quantized: ir.Model) -> list[Layer]:
        """Return the layers with weights, and the others that are quantized or were put back to float."""
        there = set(found.layers)
        rows = []
        for node in self._prepared.graph:
            name = str(node.name)
            if name not in there and node.op_type not in _WEIGHTED:
                continue
            kept = name in there and name not in found.left
            noise = found.noise.get(name)
            why = "" if kept else self._why(scheme, name, found)
            source = origin_of(node).source
            rows.append(Layer(name, operator_name(node), "quantized" if kept else "float", why, noise, source=source))
        return rows

    def _why(self, scheme: Scheme, name: str, found: Found) -> str:
        if name not in found.left:
            return f"{scheme.quantizer} leaves it"
        return "hurts most" if name == found.left[0] else f"hurts, number {found.left.index(name) + 1}"

    def save(self, found: Found, scheme: Scheme, result: Quantized, path: Path) -> None:
        """Save the model with its origins, and with the record of how it was quantized."""
        assert found.path is not None
        model = onnx_files.load(found.path)
        record = {
            **scheme.fields,
            "engine": self._engine,
            "calibration_samples": result.calibration_samples,
            "held_out_samples": result.accuracy.samples,
            "float_layers": list(found.left),
            "limits": {k: v for k, v in to_json(result.limits).items() if v is not None},
            "cosine": result.accuracy.cosine,
            "sqnr_db": to_json(result.accuracy.sqnr),
            "top1": result.accuracy.top1,
        }
        restore(model, self._model if not self._model.functions else self._prepared, record)
        onnx_files.save(model, path)


def _too_lossy(scheme: Scheme, whole: Accuracy, limits: Limits, found: Found) -> QuantizationError:
    worst = next(iter(found.noise.items()), None)
    where = f"'{worst[0]}' alone brings the SQNR to {decibels(worst[1]):.1f} dB" if worst else None
    return QuantizationError(
        f"{scheme.name} loses more than was allowed, whichever layers are left in float: {whole} with all layers "
        f"quantized, asked were {limits}",
        where=where,
        next_step="allow more with --max-drop, give more --data, or try another --calibration or --scheme",
    )
