"""aten.masked_select

    output = all input[i] with mask[i], in order, after both were broadcast

ONNX's Compress takes them from a flat tensor; torch has no translation for it (2.13).
"""

from __future__ import annotations

from typing import Any

from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::masked_select.default")
def masked_select(self: Any, mask: Any) -> Any:
    every = op.Constant(value_ints=[-1])
    full = op.Expand(mask, op.Shape(self))  # Expand broadcasts both ways
    values = op.Expand(self, op.Shape(full))
    return op.Compress(op.Reshape(values, every), op.Reshape(full, every))
