"""Dynamic int8: matrices in int8, activations in uint8 with ranges that are computed in each run.

Convolutions are left alone: ONNX Runtime's ConvInteger takes ten times as long as its float convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchport.optimization.scheme import Scheme
from torchport.process import silence

OPERATORS = ("MatMul", "Gemm", "Attention", "LSTM")


def by_onnxruntime(source: Path, target: Path, scheme: Scheme, exclude: Sequence[str]) -> None:
    """Quantize with onnxruntime.quantization, all nodes but these."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with silence():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=list(OPERATORS),
            per_channel=scheme.per_channel,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[*exclude, *(f"{name}_MatMul" for name in exclude)],  # a Gemm becomes a MatMul first
        )
