"""What a `for` goes over, when its length only the running model knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchport.capture.control_flow.dynamic_lists import Columns, Ragged, Rows, as_number_tensor
from torchport.errors import RewriteError
from torchport.torch_compat.shape_env import rounds, statically_known_true as known


class Items:
    """A sequence by number. To the user's code it is a list that is read only."""

    def length(self) -> Any:
        raise NotImplementedError

    def at(self, index: Any) -> Any:
        raise NotImplementedError

    def sliced(self, part: slice) -> Items:
        raise RewriteError("a slice of a list whose length only the running model knows")

    def __iter__(self) -> Iterator[Any]:
        return (self.at(n) for n in range(self.length()))

    def __len__(self) -> int:
        length: int = self.length()  # a symbolic one is refused by Python, which names the line
        return length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.sliced(index)
        return self.at(self.length() + index if isinstance(index, int) and index < 0 else index)

    def __add__(self, other: Any) -> Items:
        return joined(self, other)

    def __radd__(self, other: Any) -> Items:
        return joined(other, self)


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

    def sliced(self, part: slice) -> Items:
        return Numbers(self.tensor[part])


class Listed(Items):
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def length(self) -> Any:
        return self._values.length() if isinstance(self._values, Ragged) else len(self._values)

    def at(self, index: Any) -> Any:
        return self._values[index]


class Range(Items):
    def __init__(self, *arguments: Any) -> None:
        first, second, third = (*arguments, None, None)[:3]
        self.start = 0 if second is None else first
        self.step = 1 if third is None else third
        span = (first if second is None else second) - self.start
        down = _is_negative(self.step)
        self._length = _not_negative(rounds(-span, -self.step) if down else rounds(span, self.step))

    @classmethod
    def of(cls, start: Any, step: Any, length: Any) -> Range:
        new = cls(0)
        new.start, new.step, new._length = start, step, length
        return new

    def length(self) -> Any:
        return self._length

    def at(self, index: Any) -> Any:
        return self.start + index * self.step

    def sliced(self, part: slice) -> Items:
        if part.step is not None and not (isinstance(part.step, int) and part.step > 0):
            if (part.start, part.stop, part.step) == (None, None, -1):
                return Range.of(self.at(self._length - 1), -self.step, self._length)
            raise RewriteError("a range is sliced backwards")
        first = 0 if part.start is None else self._place(part.start)
        last = self._length if part.stop is None else self._place(part.stop)
        every = part.step or 1
        return Range.of(self.at(first), self.step * every, _not_negative(rounds(last - first, every)))

    def _place(self, index: Any) -> Any:
        """Where a slice begins or ends, inside of the range."""
        place = self._length + index if _is_negative(index) else index
        return _not_negative(place if known(place <= self._length) else torch.sym_min(place, self._length))

    def tensor(self) -> torch.Tensor:
        return self.start + self.step * torch.arange(self._length)


def _is_negative(number: Any) -> bool:
    return isinstance(number, int) and number < 0


def _not_negative(size: Any) -> Any:
    if isinstance(size, int):
        return max(size, 0)
    return size if known(size >= 0) else torch.sym_max(size, 0)


def joined(left: Any, right: Any) -> Items:
    """`left + right` of lists of whole numbers, one of them of unknown length."""
    begins = isinstance(right, Range) and isinstance(left, list) and len(left) == 1
    if begins and known(left[0] + right.step == right.start):
        return Range.of(left[0], right.step, right.length() + 1)  # sizes made of it stay formulas
    return Numbers(torch.cat([_numbers(left), _numbers(right)]))


def _numbers(values: Any) -> torch.Tensor:
    if isinstance(values, Numbers):
        return values.tensor
    if isinstance(values, Range):
        return values.tensor()
    if isinstance(values, Rows) and values.numbers:
        return values.tensor()
    if type(values) is not list or not all(isinstance(v, (int, torch.SymInt)) for v in values):
        raise RewriteError("a list of unknown length is joined with something else than a list of whole numbers")
    if not values:
        return torch.zeros(0, dtype=torch.int64)
    return torch.stack([as_number_tensor(v, torch.int64) for v in values])


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
        return Numbers(iterable.tensor()) if iterable.numbers else TensorRows(iterable.tensor())
    if isinstance(iterable, Columns):
        return Zipped([_items_of_list(column) for column in iterable.columns])
    if isinstance(iterable, Ragged):
        return Listed(iterable)
    if isinstance(iterable, range):
        return Range(iterable.start, iterable.stop, iterable.step)
    return Listed(iterable) if isinstance(iterable, (list, tuple)) else None


def _items_of_list(values: Any) -> Items:
    items = items_of(values)
    assert items is not None
    return items
