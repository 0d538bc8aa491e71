"""`x[:50]` of an axis whose size varies: it ends at 50 or at the size, as the running model knows.

torch.export settles by the example which of the two it is.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch

from torchport.torch_compat.shape_env import surely

slice_ = slice


def part(values: Any, index: Any) -> Any:
    """`values[index]` with slices in the index, without settling where they begin and end."""
    if isinstance(values, torch.Tensor) and torch.compiler.is_exporting():
        index = _settled_by_none(values, index if isinstance(index, tuple) else (index,))
    return values[index]


def _settled_by_none(tensor: torch.Tensor, index: tuple[Any, ...]) -> tuple[Any, ...]:
    missing = tensor.dim() - sum(map(_axes, index))
    axis, new = 0, []
    for one in index:
        varies = isinstance(one, slice) and isinstance(tensor.shape[axis], torch.SymInt)
        new.append(_inside(one, tensor.shape[axis]) if varies else one)
        axis += missing if isinstance(one, EllipsisType) else _axes(one)
    return tuple(new)


def _axes(index: Any) -> int:
    """How many axes of a tensor one part of an index speaks of."""
    if index is None or isinstance(index, (bool, EllipsisType)):
        return 0
    return index.dim() if isinstance(index, torch.Tensor) and index.dtype is torch.bool else 1


def _inside(part: slice, size: Any) -> slice:
    if not all(_from_inputs(n) for n in (part.start, part.stop, size)):
        return part  # torch leaves it open what comes of it
    start = 0 if part.start is None else _place(part.start, size)
    stop = size if part.stop is None else _place(part.stop, size)
    return slice(start, stop if surely(stop >= start) else torch.sym_max(stop, start), part.step)


def _from_inputs(number: Any) -> bool:
    """Whether a number is one that is known, or made of sizes of the inputs."""
    if isinstance(number, torch.SymInt):
        return bool(number.node.has_hint())
    return number is None or isinstance(number, int)


def _place(index: Any, size: Any) -> Any:
    """Where a slice begins or ends, between 0 and the size."""
    if surely(index < 0):
        index = size + index
    elif not surely(index >= 0):
        return index
    index = index if surely(index >= 0) else torch.sym_max(index, 0)
    return index if surely(index <= size) else torch.sym_min(index, size)
