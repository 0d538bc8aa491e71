"""aten::bincount

    output[k] = how many numbers are k, or the sum of their weights; for k up to the largest, and up to minlength

Source of truth: ATen's native/SummaryOps.cpp. Weights of 32 bits give sums of 32 bits, all others of 64.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::bincount.default")
def bincount(self: Any, weights: Any = None, minlength: Any = 0) -> Any:
    """Translate one call: each amount is added to its place among zeros."""
    places = op.Cast(self, to=ir.DataType.INT64)
    one = op.Constant(value_ints=[1])
    least = op.Constant(value_ints=[minlength]) if isinstance(minlength, int) else op.Reshape(minlength, one)
    size = op.ReduceMax(op.Concat(op.Add(places, one), least, axis=0), keepdims=1)  # of no numbers, too
    if weights is None:
        amounts = op.Expand(one, op.Shape(places))
        dtype = ir.DataType.INT64
    else:
        dtype = ir.DataType.FLOAT if weights.dtype == ir.DataType.FLOAT else ir.DataType.DOUBLE
        amounts = op.Cast(weights, to=dtype)
    zeros = op.Expand(op.Constant(value=ir.tensor([0], dtype=dtype)), size)
    return op.ScatterElements(zeros, places, amounts, axis=0, reduction="add")
