"""aten.masked_select

    output = all input[i] with mask[i], in order, after both were broadcast

ONNX's Compress takes them from a flat tensor; torch has no translation for it (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def masked_select(self: Any, mask: Any) -> Any:
    every = op.Constant(value_ints=[-1])
    full = op.Expand(mask, op.Shape(self))  # Expand broadcasts both ways
    values = op.Expand(self, op.Shape(full))
    return op.Compress(op.Reshape(values, every), op.Reshape(full, every))


def translations() -> dict[Any, Callable[..., Any]]:
    return {torch.ops.aten.masked_select.default: masked_select}
