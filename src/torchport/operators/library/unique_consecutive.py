"""aten::unique_consecutive

    values = those that differ from the one before; inverse = each one's run; counts = how long the runs are

Torch translates it for whole numbers and without an axis only. Along an axis, slices are compared.

Source of truth: ATen's native/Unique.cpp.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::unique_consecutive.default")
def unique_consecutive(
    self: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Translate one call; what was not asked for is empty, as in PyTorch."""
    rank = len(self.shape)
    flat = dim is None or rank == 0
    axis = 0 if flat or dim is None else dim % rank
    x = op.Reshape(self, op.Constant(value_ints=[-1])) if flat else self
    size = op.Shape(x, start=axis, end=axis + 1)
    one, zero = op.Constant(value_int=1), op.Constant(value_int=0)
    place = op.Range(zero, op.Squeeze(size), one)
    before = op.Gather(x, op.Max(op.Sub(place, one), zero), axis=axis)
    differ = op.Not(op.Equal(x, before))
    if not flat and rank > 1:
        others = op.Constant(value_ints=[i for i in range(rank) if i != axis])
        differ = op.Cast(op.ReduceMax(op.Cast(differ, to=ir.DataType.INT32), others, keepdims=0), to=ir.DataType.BOOL)
    begins = op.Or(op.Equal(place, zero), differ)
    values = op.Compress(x, begins, axis=axis)
    inverse = counts = op.Constant(value=ir.tensor([], dtype=ir.DataType.INT64))
    if return_inverse:
        run = op.Sub(op.CumSum(op.Cast(begins, to=ir.DataType.INT64), zero), one)
        inverse = op.Reshape(run, op.Shape(self)) if flat else run
    if return_counts:
        starts = op.Compress(place, begins)
        last = op.Constant(value_ints=[2**62])
        following = op.Slice(op.Concat(starts, size, axis=0), op.Constant(value_ints=[1]), last)
        counts = op.Sub(following, starts)
    return values, inverse, counts
