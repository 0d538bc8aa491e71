"""Weights in int8 or int4, in blocks that share a scale; activations stay in float.

    rtn    each number is rounded to the nearest; no data
    hqq    scales and zeros that make the error of the weights small; no data, int4
    gptq   rounding errors are made up for by later columns, as calibration data weighs them; int4

ONNX Runtime has a kernel of its own for such matrices, MatMulNBits, and computes with int8 activations in it where that
is faster. OpenVINO reads the standard's DequantizeLinear, which nncf writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchport.files.onnx_files import INLINE_LIMIT
from torchport.optimization.scheme import NNCF, Scheme
from torchport.optimization.static_int8 import Samples
from torchport.process import silence

_INT8_ACTIVATIONS = 4  # ONNX Runtime's level of accuracy in which MatMulNBits is fastest
_MOST_SAMPLES = 32  # that GPTQ holds in memory at once


def quantize(source: Path, target: Path, scheme: Scheme, exclude: Sequence[str], samples: Samples) -> None:
    """Quantize all matrices but these."""
    if scheme.quantizer == NNCF:
        _by_nncf(source, target, scheme, exclude)
    elif scheme.method == "gptq":
        _by_gptq(source, target, scheme, exclude, samples)
    else:
        _by_onnxruntime(source, target, scheme, exclude)


def _matrices(source: Path) -> Any:
    """Return the model with each Gemm as a MatMul and an Add, since the quantizers know MatMul only."""
    import onnx
    from onnxruntime.quantization.onnx_model import ONNXModel

    model = ONNXModel(onnx.load(source))
    model.replace_gemm_with_matmul()
    return model.model


def _renamed(exclude: Sequence[str]) -> list[str]:
    return [*exclude, *(f"{name}_MatMul" for name in exclude)]


def _by_onnxruntime(source: Path, target: Path, scheme: Scheme, exclude: Sequence[str]) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer as blocks

    config: Any
    if scheme.method == "hqq":
        config = blocks.HQQWeightOnlyQuantConfig(block_size=scheme.block, bits=scheme.bits)
    else:
        config = blocks.DefaultWeightOnlyQuantConfig(
            block_size=scheme.block,
            is_symmetric=scheme.symmetric is not False,
            accuracy_level=_INT8_ACTIVATIONS,
            bits=scheme.bits,
        )
    with silence():
        model = _matrices(source)
        quantizer = blocks.MatMulNBitsQuantizer(model, nodes_to_exclude=_renamed(exclude), algo_config=config)
        quantizer.process()
    quantizer.model.save_model_to_file(str(target), source.stat().st_size > INLINE_LIMIT)


class _Reader:
    """Samples as GPTQ reads them."""

    batch_size = 1

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[Any, None]]:
        return ((feeds, None) for feeds in self._samples)


def _by_gptq(source: Path, target: Path, scheme: Scheme, exclude: Sequence[str], samples: Samples) -> None:
    import onnx
    from onnxruntime.quantization.neural_compressor import gptq_quantize

    kind = "asym" if scheme.symmetric is False else "sym"
    with silence():
        model = _matrices(source)
        names = {node.name for node in model.graph.node if node.op_type == "MatMul"} - set(_renamed(exclude))
        config = {"bits": scheme.bits, "group_size": scheme.block, "scheme": kind}
        found = gptq_quantize(
            model,
            _Reader(samples),
            weight_config={
                node.name: config if node.name in names else "fp32"
                for node in model.graph.node
                if node.op_type == "MatMul"
            },
            n_samples=_MOST_SAMPLES,
            accuracy_level=_INT8_ACTIVATIONS,
        )
    found.model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))  # which it forgets
    onnx.save(found.model, target)


def _by_nncf(source: Path, target: Path, scheme: Scheme, exclude: Sequence[str]) -> None:
    import nncf
    import onnx

    nncf.set_log_level(logging.ERROR)
    model = onnx.load(source)
    modes = nncf.CompressWeightsMode
    options: dict[str, Any]
    if scheme.bits == 8:
        options = {"mode": modes.INT8_SYM if scheme.symmetric else modes.INT8_ASYM}
    else:
        mode = modes.INT4_ASYM if scheme.symmetric is False else modes.INT4_SYM
        options = {"mode": mode, "group_size": scheme.block, "all_layers": False}
    there = {node.name for node in model.graph.node}
    with silence():
        found = nncf.compress_weights(
            model, ignored_scope=nncf.IgnoredScope(names=[n for n in exclude if n in there]), **options
        )
    onnx.save(found, target)
