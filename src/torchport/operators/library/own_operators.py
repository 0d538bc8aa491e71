"""Operators that torchport defines for its own translations: literals, products of quantized integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.registration import translates

# torchport::literal
#
#     output = these very numbers, in that shape and type
#
# A tensor that is written out in a branch or a loop, `torch.tensor([1, 2])` say: torch forgets the numbers of a
# constant there when it takes a program apart, and keeps the arguments of an operator. `capture/repairs/written_out.py`
# calls it.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_library = torch.library.Library("torchport", "FRAGMENT")
_library.define("literal.float(float[] numbers, int[] shape, ScalarType dtype) -> Tensor")
_library.define("literal.int(int[] numbers, int[] shape, ScalarType dtype) -> Tensor")


def _shaped(numbers: Sequence[float], shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _computed(numbers: Sequence[float], shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).reshape(list(shape))


for _overload in ("float", "int"):
    torch.library.register_fake(f"torchport::literal.{_overload}", _shaped, lib=_library)
    torch.library.impl(f"torchport::literal.{_overload}", "CompositeExplicitAutograd", _computed, lib=_library)


def call_for(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """The operator and the arguments that give a tensor of real numbers."""
    own: Any = torch.ops.torchport.literal
    floats = tensor.is_floating_point()
    numbers = tensor.detach().reshape(-1).to(torch.float64 if floats else torch.int64)
    return own.float if floats else own.int, (numbers.tolist(), list(tensor.shape), tensor.dtype)


@translates("torchport::literal.float", "torchport::literal.int")
def literal(numbers: Sequence[float], shape: Sequence[int], dtype: int) -> Any:
    """Translate one call."""
    values = np.array(numbers, dtype=ir.DataType(dtype).numpy()).reshape(shape)
    return op.Constant(value=ir.tensor(values, dtype=ir.DataType(dtype)))


# torchport::matmul_integer, aten::_int_mm
#
#     (a - zero point of a) · (b - zero point of b)     in int32, as ONNX's MatMulInteger has it
#
# torch has no operator for it that takes 8 bits without sign and any rank, so the capture of dynamically quantized
# layers (capture/repairs/quantized.py) has one of its own.

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
