"""A list of tensors whose length only the running model knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.rewrite.refusal import RewriteError


class Rows(list[Any]):
    """Looks like a list to the user's code, and is one tensor with the list's items along the first axis.

    The list below holds a single stand-in, because torch's functions look at the items of a list before they ask
    anybody; `StackedRows` then gives them the tensor.
    """

    def __init__(self, block: torch.Tensor, added: Sequence[torch.Tensor] = ()) -> None:
        super().__init__([block])
        self.block = block
        self.added = list(added)  # items appended after those of the block

    def tensor(self) -> torch.Tensor:
        """All items along the first axis."""
        if not self.added:
            return self.block
        return torch.cat([self.block, torch.stack(self.added)])

    def append(self, item: Any) -> None:
        if not isinstance(item, torch.Tensor):
            item = torch.as_tensor(item)
        if item.dim() + 1 != self.block.dim():
            raise RewriteError("the list holds tensors of different ranks, which cannot become one tensor")
        self.added.append(item.to(self.block.dtype))

    def extend(self, items: Iterable[Any]) -> None:
        if isinstance(items, Rows):
            self.block = torch.cat([self.tensor(), items.tensor()])
            self.added = []
        else:
            for item in items:
                self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> Rows:  # type: ignore[misc]
        self.extend(items)
        return self

    def __add__(self, items: Any) -> Rows:
        new = Rows(self.block, self.added)
        new.extend(items)
        return new

    def copy(self) -> Rows:
        return Rows(self.block, self.added)

    def __len__(self) -> int:
        return self.length()

    def length(self) -> Any:
        return self.block.shape[0] + len(self.added)

    def __bool__(self) -> bool:
        return bool(self.length() > 0)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and -len(self.added) <= index < 0:
            return self.added[index]
        tensor = self.tensor()
        if isinstance(index, slice) and index.step is not None and index.step < 0:
            if (index.start, index.stop) != (None, None):
                raise RewriteError("a list filled in a loop, sliced backwards from or to a place")
            return Rows(tensor.flip(0)[:: -index.step])
        return Rows(tensor[index]) if isinstance(index, slice) else tensor[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tensor())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.tensor().flip(0))

    def _unsupported(self, *_: Any, **__: Any) -> Any:
        raise RewriteError("a list filled in a loop can be appended to, indexed, sliced, stacked and concatenated only")

    def reverse(self) -> None:
        self.block, self.added = self.tensor().flip(0), []

    insert = pop = remove = clear = sort = index = count = __setitem__ = __delitem__ = _unsupported


class StackedRows(TorchFunctionMode):
    """Gives torch's functions on lists the tensor behind a `Rows`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = args[0] if args else kwargs.get("tensors")
        if isinstance(given, Rows):
            dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
            if func is torch.stack:
                return _moved(given.tensor(), dim)
            if func in (torch.cat, torch.concat, torch.concatenate):
                return _joined(given.tensor(), dim)
            if func is torch.vstack:
                tensor = given.tensor()
                return _joined(tensor if tensor.dim() > 2 else tensor.unsqueeze(1), 0)
            if func is torch.hstack:
                return _joined(given.tensor(), 0 if given.block.dim() == 2 else 1)
            raise RewriteError(f"torch.{getattr(func, '__name__', func)} of a list filled in a loop")
        if isinstance(given, (list, tuple)) and any(isinstance(item, Rows) for item in given):
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
