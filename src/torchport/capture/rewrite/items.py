"""What a `for` goes over, when its length only the running model knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchport.capture.rewrite.rows import Rows


class Items:
    """A sequence by number."""

    def length(self) -> Any:
        raise NotImplementedError

    def at(self, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return (self.at(n) for n in range(self.length()))


class TensorRows(Items):
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def length(self) -> Any:
        return self._tensor.shape[0]

    def at(self, index: Any) -> Any:
        return self._tensor.select(0, index)


class Numbers(Items):
    """`tensor.tolist()` of a tensor with one axis."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def length(self) -> Any:
        return self.tensor.shape[0]

    def at(self, index: Any) -> Any:
        number = self.tensor.select(0, index)
        return number if number.dtype.is_floating_point or number.dtype is torch.bool else number.item()


class Listed(Items):
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def length(self) -> Any:
        return len(self._values)

    def at(self, index: Any) -> Any:
        return self._values[index]


class Range(Items):
    def __init__(self, *arguments: Any) -> None:
        first, second, third = (*arguments, None, None)[:3]
        self._start = 0 if second is None else first
        self._stop = first if second is None else second
        self._step = 1 if third is None else third

    def length(self) -> Any:
        step = self._step
        if isinstance(step, int) and step < 0:
            span, step = self._start - self._stop, -step
        else:
            span = self._stop - self._start
        rounds = span if isinstance(step, int) and step == 1 else (span + step - 1) // step
        return max(rounds, 0) if isinstance(rounds, int) else _not_negative(rounds)

    def at(self, index: Any) -> Any:
        return self._start + index * self._step


def _not_negative(size: Any) -> Any:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return size if statically_known_true(size >= 0) else torch.sym_max(size, 0)


class Zipped(Items):
    def __init__(self, parts: Sequence[Items]) -> None:
        self._parts = parts

    def length(self) -> Any:
        shortest = self._parts[0].length()
        for part in self._parts[1:]:
            length = part.length()
            if str(length) != str(shortest):
                shortest = torch.sym_min(shortest, length)
        return shortest

    def at(self, index: Any) -> Any:
        return tuple(part.at(index) for part in self._parts)


class Enumerated(Items):
    def __init__(self, items: Items, start: Any) -> None:
        self._items = items
        self._start = start

    def length(self) -> Any:
        return self._items.length()

    def at(self, index: Any) -> Any:
        return self._start + index, self._items.at(index)


class Reversed(Items):
    def __init__(self, items: Items) -> None:
        self._items = items

    def length(self) -> Any:
        return self._items.length()

    def at(self, index: Any) -> Any:
        return self._items.at(self.length() - 1 - index)


def items_of(iterable: Any) -> Items | None:
    """A sequence by number, None for an iterable that is not one."""
    if isinstance(iterable, Items):
        return iterable
    if isinstance(iterable, torch.Tensor):
        return TensorRows(iterable) if iterable.dim() else None
    if isinstance(iterable, Rows):
        return TensorRows(iterable.tensor())
    if isinstance(iterable, range):
        return Range(iterable.start, iterable.stop, iterable.step)
    return Listed(iterable) if isinstance(iterable, (list, tuple)) else None
