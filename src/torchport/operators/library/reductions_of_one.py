"""aten::amax, aten::amin, aten::prod.dim_int, aten::all, aten::any of a tensor without axes

    output = input, and input != 0 for all and any

PyTorch lets the axis of a single number be called 0 or -1. ONNX does not, and torch passes it on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.composing import only_where
from torchport.operators.registering import composes, translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def extreme(reduce: str) -> Callable[..., Any]:
    """The translation of amax (ReduceMax) or amin (ReduceMin)."""

    def translate(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        if len(self.shape) == 0:
            return op.Identity(self)
        axes = [op.Constant(value_ints=list(dim))] if dim else []
        x = op.Cast(self, to=ir.DataType.INT32) if self.dtype == ir.DataType.BOOL else self
        reduced = getattr(op, reduce)(x, *axes, keepdims=int(keepdim))
        return op.Cast(reduced, to=self.dtype) if x is not self else reduced

    return translate


@translates("aten::prod.dim_int")
def prod(self: Any, dim: int, keepdim: bool = False, dtype: int = -1) -> Any:
    """Translate one call; whole numbers are multiplied in 64 bits."""
    wide = self.dtype.is_integer() or self.dtype == ir.DataType.BOOL
    kind = (ir.DataType.INT64 if wide else self.dtype) if dtype == -1 else ir.DataType(dtype)
    x = op.Cast(self, to=kind)
    if len(self.shape) == 0:
        return x
    return op.ReduceProd(x, op.Constant(value_ints=[dim]), keepdims=int(keepdim))


@composes("aten::all.dim", "aten::any.dim", "aten::all.dims", "aten::any.dims")
@only_where(lambda self, *_, **__: self.dim() == 0)
def truth(self: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    return (self != 0).to(torch.uint8 if self.dtype == torch.uint8 else torch.bool)


translates("aten::amax.default")(extreme("ReduceMax"))
translates("aten::amin.default")(extreme("ReduceMin"))
