"""Lists whose length only the running model knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.errors import RewriteError
from torchport.torch_compat.shape_env import check
from torchport.torch_compat.tracing import register_structure


class OpenList(list[Any]):
    """Looks like a list to the user's code, and is kept in tensors.

    The list below holds a single stand-in, because torch's functions look at the items of a list before they ask
    anybody; `StackedRows` then gives them the tensor.
    """

    def length(self) -> Any:
        raise NotImplementedError

    def copy(self) -> OpenList:
        raise NotImplementedError

    def __len__(self) -> int:
        length: int = self.length()  # a symbolic one is refused by Python, which names the line
        return length

    def __bool__(self) -> bool:
        return bool(self.length() > 0)

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> OpenList:  # type: ignore[misc]
        self.extend(items)
        return self

    def __add__(self, items: Any) -> OpenList:
        new = self.copy()
        new.extend(items)
        return new

    def _unsupported(self, *_: Any, **__: Any) -> Any:
        raise RewriteError(
            "a list of unknown length can be appended to, indexed, sliced, changed at a fixed place, stacked and "
            "concatenated only"
        )

    insert = pop = remove = clear = sort = index = count = reverse = __setitem__ = __delitem__ = _unsupported


class Rows(OpenList):
    """Items of one shape, along the first axis of one tensor.

    Args:
        block: the items so far.
        added: items appended after those of the block.
        numbers: whether the items are whole numbers to the user's code.
    """

    def __init__(self, block: torch.Tensor, added: Sequence[torch.Tensor] = (), *, numbers: bool = False) -> None:
        super().__init__([block])
        self.block = block
        self.added = list(added)
        self.numbers = numbers

    def tensor(self) -> torch.Tensor:
        """All items along the first axis."""
        if not self.added:
            return self.block
        return torch.cat([self.block, torch.stack(self.added)])

    def append(self, item: Any) -> None:
        if not isinstance(item, torch.Tensor):
            item = as_number_tensor(item, self.block.dtype)
        if item.dim() + 1 != self.block.dim():
            raise RewriteError("the list holds tensors of different ranks, which cannot become one tensor")
        self.added.append(item.to(self.block.dtype))

    def extend(self, items: Iterable[Any]) -> None:
        if isinstance(items, Rows):
            self.block = torch.cat([self.tensor(), items.tensor()])
            self.added = []
        else:
            super().extend(items)

    def copy(self) -> Rows:
        return Rows(self.block, self.added, numbers=self.numbers)

    def length(self) -> Any:
        return self.block.shape[0] + len(self.added)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and -len(self.added) <= index < 0:
            return self._item(self.added[index])
        tensor = self.tensor()
        if isinstance(index, slice) and index.step is not None and index.step < 0:
            if (index.start, index.stop) != (None, None):
                raise RewriteError("a list filled in a loop, sliced backwards from or to a place")
            return Rows(tensor.flip(0)[:: -index.step], numbers=self.numbers)
        return Rows(tensor[index], numbers=self.numbers) if isinstance(index, slice) else self._item(tensor[index])

    def _item(self, tensor: torch.Tensor) -> Any:
        return tensor.item() if self.numbers else tensor

    def __iter__(self) -> Iterator[Any]:
        return map(self._item, _fixed(self.tensor()))

    def __reversed__(self) -> Iterator[Any]:
        return map(self._item, _fixed(self.tensor().flip(0)))

    def reverse(self) -> None:
        self.block, self.added = self.tensor().flip(0), []

    def pop(self, index: Any = -1) -> Any:
        item = self[index]
        if isinstance(index, int) and -len(self.added) <= index < 0:
            del self.added[index]
        else:
            before, after = self._around(index)
            self.block, self.added = torch.cat([before, after]), []
        return item

    def __setitem__(self, index: Any, item: Any) -> None:
        if isinstance(index, slice):
            self._unsupported()
        before, after = self._around(index)
        new = Rows(before)
        new.append(item)
        self.block, self.added = torch.cat([new.tensor(), after]), []

    def _around(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The items before and after one of them."""
        tensor = self.tensor()
        if not isinstance(index, int):
            raise RewriteError("a list filled in a loop, changed at a place that only the running model knows")
        return tensor[:index], tensor[index + 1 :] if index != -1 else tensor[:0]


class Columns(OpenList):
    """Items that are tuples: a list for each of their places."""

    def __init__(self, columns: Sequence[Any]) -> None:
        super().__init__(columns)
        self.columns = list(columns)

    def length(self) -> Any:
        return self.columns[0].length()

    def copy(self) -> Columns:
        return Columns([c.copy() for c in self.columns])

    def append(self, item: Any) -> None:
        if not isinstance(item, tuple) or len(item) != len(self.columns):
            raise RewriteError("the list holds tuples of different lengths")
        for column, value in zip(self.columns, item, strict=True):
            column.append(value)

    def extend(self, items: Iterable[Any]) -> None:
        if isinstance(items, Columns):
            for column, further in zip(self.columns, items.columns, strict=True):
                column.extend(further)
        else:
            super().extend(items)

    def __getitem__(self, index: Any) -> Any:
        values = [c[index] for c in self.columns]
        return Columns(values) if isinstance(index, slice) else tuple(values)

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.columns, strict=True)


class Ragged(OpenList):
    """Tensors that differ in the size of one axis: one after the other along it, and how much of it each has."""

    def __init__(self, data: torch.Tensor, sizes: torch.Tensor, axis: int) -> None:
        super().__init__([data])
        self.data = data
        self.sizes = sizes
        self.axis = axis

    @classmethod
    def of(cls, items: Sequence[torch.Tensor], axis: int) -> Ragged:
        sizes = [as_number_tensor(item.shape[axis], torch.int64) for item in items]
        return cls(torch.cat(list(items), dim=axis), torch.stack(sizes), axis)

    @classmethod
    def none(cls, like: Any, axis: int) -> Ragged:
        """An empty list of items like those of another."""
        item = like.data if isinstance(like, Ragged) else like[-1]
        sizes = [0 if n == axis else size for n, size in enumerate(item.shape)]
        return cls(torch.zeros(sizes, dtype=item.dtype), torch.zeros(0, dtype=torch.int64), axis)

    def length(self) -> Any:
        return self.sizes.shape[0]

    def copy(self) -> Ragged:
        return Ragged(self.data, self.sizes, self.axis)

    def append(self, item: Any) -> None:
        if not isinstance(item, torch.Tensor) or item.dim() != self.data.dim() or item.dtype != self.data.dtype:
            raise RewriteError("the list holds tensors of different ranks or types, which cannot become one tensor")
        size = as_number_tensor(item.shape[self.axis], torch.int64)
        self.data = torch.cat([self.data, item], dim=self.axis)
        self.sizes = torch.cat([self.sizes, size.reshape(1)])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._unsupported()
        ends = self.sizes.cumsum(0)
        size: Any = self.sizes[index].item()
        start: Any = (ends[index] - self.sizes[index]).item()
        check(size >= 0)
        check(start >= 0)
        check(start + size <= self.data.shape[self.axis])
        return self.data.narrow(self.axis, start, size)

    def stacked(self) -> torch.Tensor:
        """All items along a new first axis, which takes that they are alike after all."""
        size = self.data.shape[self.axis] // torch.sym_max(self.length(), 1)
        split = [*self.data.shape[: self.axis], self.length(), size, *self.data.shape[self.axis + 1 :]]
        return self.data.reshape(split).movedim(self.axis, 0)

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(self.length()))


def _ragged(parts: Iterable[Any], axis: Any) -> Ragged:
    data, sizes = parts
    return Ragged(data, sizes, axis)


# what a branch or a round gives is taken apart by torch's trees: each part is carried as a tensor of its own
register_structure(Columns, lambda c: (c.columns, None), lambda parts, _: Columns(list(parts)))
register_structure(Ragged, lambda r: ([r.data, r.sizes], r.axis), _ragged)


def as_number_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A Python number, or a size that is not known, as a tensor without axes."""
    if isinstance(value, torch.SymBool):
        value = torch.sym_ite(value, 1, 0)
    return torch.full((), value, dtype=dtype)


_JOINS = (torch.cat, torch.concat, torch.concatenate)


_UNBINDS = (torch.unbind, torch.Tensor.unbind)


def _size_along(input: torch.Tensor, dim: int = 0) -> Any:
    return input.shape[dim]


def _unbound(input: torch.Tensor, dim: int = 0) -> Rows:
    return Rows(input.movedim(dim, 0))


def _fixed(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """As many rows as the example has, where Python asks for them one by one; the capture then names the line."""
    return [tensor[place] for place in range(tensor.shape[0])]


def _dim(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    dim: int = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    return dim


class StackedRows(TorchFunctionMode):
    """Gives torch's functions on lists the tensor behind one, and such a list for `unbind` along an unknown size."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _UNBINDS and not isinstance(_size_along(*args, **kwargs), int):
            return _unbound(*args, **kwargs)
        given = args[0] if args else kwargs.get("tensors")
        if isinstance(given, Ragged) and func in _JOINS and _dim(args, kwargs) % given.data.dim() == given.axis:
            return given.data
        if isinstance(given, (Rows, Ragged)):
            tensor, dim = given.tensor() if isinstance(given, Rows) else given.stacked(), _dim(args, kwargs)
            if func is torch.stack:
                return _moved(tensor, dim)
            if func in _JOINS:
                return _joined(tensor, dim)
            if func is torch.vstack:
                return _joined(tensor if tensor.dim() > 2 else tensor.unsqueeze(1), 0)
            if func is torch.hstack:
                return _joined(tensor, 0 if tensor.dim() == 2 else 1)
            if func in (torch.tensor, torch.as_tensor) and tensor.dim() == 1:
                return tensor.to(kwargs.get("dtype") or tensor.dtype)
            raise RewriteError(f"torch.{getattr(func, '__name__', func)} of a list filled in a loop")
        if isinstance(given, (list, tuple)) and any(isinstance(item, OpenList) for item in given):
            raise RewriteError("a list filled in a loop, inside another list")
        return func(*args, **kwargs)


def _moved(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor if dim in (0, -tensor.dim()) else tensor.movedim(0, dim)


def _joined(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The items one after the other along `dim` of their own."""
    rank = tensor.dim() - 1
    if rank == 0:
        raise RewriteError("zero-dimensional tensors cannot be concatenated")
    dim %= rank
    return tensor.movedim(0, dim).flatten(dim, dim + 1)
