"""aten::roll

    output[i] = input[(i - shift) mod n], along each of the axes; without axes the flat input is rolled

For shifts that come from a value: torch's own translation takes plain numbers only.

Source of truth: ATen's native/TensorTransformations.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.operators.composing import only_where
from torchport.operators.registering import composes


def _is_open(self: Any, shifts: Any, dims: Any = ()) -> bool:
    return not all(isinstance(s, int) for s in shifts)


@composes("aten::roll.default")
@only_where(_is_open)
def roll(self: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return _rolled(self.reshape(-1), shifts[0], 0).reshape(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(self, shift, dim)
    return self


def _rolled(x: Any, shift: Any, dim: int) -> Any:
    count = torch.full((), x.shape[dim], dtype=torch.int64, device=x.device)
    return x.index_select(dim, torch.remainder(torch.arange(x.shape[dim], device=x.device) - shift, count))
