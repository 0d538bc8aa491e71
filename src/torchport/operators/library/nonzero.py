"""aten::nonzero, aten::nonzero_static

    the places of all numbers that are not zero, one a row, in order; nonzero_static: so many rows, filled up

A tensor without axes has places without numbers: [n, 0], not ONNX's [n, 1]. ONNX Runtime looks through few types; all
are made truth values first. Of the static form no size is unknown, so each number is scattered to its row.

Source of truth: ATen's native/TensorAdvancedIndexing.cpp.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.registering import composes, translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::nonzero.default")
def nonzero(self: Any) -> Any:
    """Translate one call."""
    truth = op.Cast(self, to=ir.DataType.BOOL)
    if len(self.shape) > 0:
        return op.Transpose(op.NonZero(truth), perm=[1, 0])
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    return op.Slice(op.Transpose(op.NonZero(op.Unsqueeze(truth, zero)), perm=[1, 0]), zero, zero, one)


@composes("aten::nonzero_static.default")
def nonzero_static(self: Any, *, size: Any, fill_value: int = -1) -> Any:
    """The composition: what is too much goes to a row after the last."""
    if self.dim() == 0 or (isinstance(size, int) and size == 0):
        return torch.full((size, self.dim()), fill_value, dtype=torch.int64, device=self.device)
    mask = (self != 0).reshape(-1)
    row = torch.where(mask, mask.long().cumsum(0) - 1, size).clamp(max=size)
    places = torch.full((size + 1,), -1, dtype=torch.int64, device=self.device)
    rest = places.scatter(0, row, torch.arange(mask.shape[0], device=self.device))[:size]
    empty, columns = rest < 0, []
    for length in reversed(self.shape):
        whole = rest // length
        columns.append(torch.where(empty, fill_value, rest - whole * length))
        rest = whole
    return torch.stack(columns[::-1], 1)
