"""aten::pad with "replicate", aten::replication_pad1d, 2d, 3d by negative amounts

    y[i] = x[min(max(i - left, 0), n - 1)] along each axis

A negative amount cuts. ONNX Runtime cuts first and then has nothing to repeat if all is cut; PyTorch repeats the first
or last number of what was given.

Source of truth: ATen's native/cpu/PaddingKernel.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.operators.composing import only_where
from torchport.operators.registering import composes


def _is_negative(padding: Sequence[Any]) -> bool:
    return any(isinstance(amount, int) and amount < 0 for amount in padding)


@composes("aten::pad.default")
@only_where(lambda self, pad, mode="constant", value=None: mode == "replicate" and _is_negative(pad))
def pad(self: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    return _replicated(self, pad)


@composes("aten::replication_pad1d.default", "aten::replication_pad2d.default", "aten::replication_pad3d.default")
@only_where(lambda self, padding: _is_negative(padding))
def replication_pad(self: Any, padding: Sequence[Any]) -> Any:
    return _replicated(self, padding)


def _replicated(x: Any, padding: Sequence[Any]) -> Any:
    for number, (left, right) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        axis = x.dim() - 1 - number
        size = x.shape[axis]
        places = torch.arange(size + left + right, device=x.device) - left
        x = x.index_select(axis, places.clamp(0, size - 1))
    return x
