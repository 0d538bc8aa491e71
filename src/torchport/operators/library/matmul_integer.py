"""torchport::matmul_integer, aten::_int_mm

    (a - zero point of a) · (b - zero point of b)     in int32, as ONNX's MatMulInteger has it

torch has no operator for it that takes 8 bits without sign and any rank, so the capture of dynamically quantized
layers (capture/repairs/quantized.py) has one of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_library = torch.library.Library("torchport", "FRAGMENT")
_library.define("matmul_integer(Tensor a, Tensor b, Tensor a_zero_point, Tensor b_zero_point) -> Tensor")


@torch.library.register_fake("torchport::matmul_integer", lib=_library)
def _shape(a: Any, b: Any, a_zero_point: Any, b_zero_point: Any) -> Any:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=torch.int32)


@translates("torchport::matmul_integer.default")
def matmul_integer(a: Any, b: Any, a_zero_point: Any, b_zero_point: Any) -> Any:
    """Translate one call; the arguments are the graph's values."""
    return op.MatMulInteger(a, b, a_zero_point, b_zero_point)


@translates("aten::_int_mm.default")
def int_mm(a: Any, b: Any) -> Any:
    """Translate aten::_int_mm: two matrices of int8."""
    return op.MatMulInteger(a, b)
