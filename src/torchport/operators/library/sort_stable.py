"""aten::sort.stable

ONNX has no sort, but the k largest with k the size of the axis. Of equal numbers TopK puts the one with the lower index
first, in both directions, which is what stable means.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::sort.stable")
def sort_stable(self: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Translate one call: the sorted values and where they were."""
    if len(self.shape) == 0:
        return op.Identity(self), op.Constant(value_int=0)
    axis = dim % len(self.shape)
    size = op.Shape(self, start=axis, end=axis + 1)
    if self.dtype != ir.DataType.BOOL:
        return op.TopK(self, size, axis=axis, largest=int(descending), sorted=1)
    values, places = op.TopK(op.Cast(self, to=ir.DataType.INT32), size, axis=axis, largest=int(descending), sorted=1)
    return op.Cast(values, to=ir.DataType.BOOL), places
