"""Layers and values picked by a tensor, and slices of an axis whose size varies."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import Any

import torch

from torchport.capture.control_flow.branches import cond
from torchport.capture.control_flow.dynamic_lists import OpenList, as_number_tensor
from torchport.errors import RewriteError
from torchport.torch_compat.shape_env import surely

# `self.experts[i]` where `i` is a number that only the running model knows: a layer, or a value, picked from several.
#
# The one that is picked is looked for by halves, so that of eight layers one runs, after three questions.

_SEQUENCES = (list, tuple, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
_MAPPINGS = (Mapping, torch.nn.ModuleDict, torch.nn.ParameterDict)

Candidates = list[tuple[int, Any]]


class Text:
    """A text with a number in it that is not known: ``f"expert_{i}"``."""

    def __init__(self, before: str, number: Any, after: str) -> None:
        self._before, self.number, self._after = before, number, after

    def filled_by(self, text: Any) -> int | None:
        """The number that makes it this text."""
        if not isinstance(text, str) or not text.startswith(self._before) or not text.endswith(self._after):
            return None
        middle = text[len(self._before) : len(text) - len(self._after)]
        return int(middle) if middle.isdecimal() and str(int(middle)) == middle else None


class Picked:
    """One of several layers or functions."""

    def __init__(self, candidates: Candidates, number: torch.Tensor) -> None:
        self._candidates, self._number = candidates, number

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _by_halves(self._candidates, self._number, lambda f: f(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return _picked([(n, builtins.getattr(v, name)) for n, v in self._candidates], self._number)


def at(values: Any, index: Any) -> Any:
    """`values[index]`, without fixing the index."""
    if isinstance(index, Text):
        keys = [k for k in values if index.filled_by(k) is not None] if isinstance(values, _MAPPINGS) else []
        return _named(index, keys, lambda key: values[key])
    if isinstance(values, torch.Tensor) and isinstance(index, (slice, tuple)):
        return part(values, index)
    listed = isinstance(values, (*_SEQUENCES, *_MAPPINGS)) and not isinstance(values, OpenList)
    if not is_open(index) or not listed:
        return values[index]
    if isinstance(values, _MAPPINGS):
        return _picked([(key, value) for key, value in values.items() if isinstance(key, int)], _whole(index))
    number = _whole(index)
    return _picked(list(enumerate(values)), torch.where(number < 0, number + len(values), number))


def getattr_(value: Any, name: Any, *default: Any) -> Any:
    """`getattr(value, name)`, for a name with a number that is not known."""
    if not isinstance(name, Text):
        return builtins.getattr(value, name, *default)
    names = [*getattr(value, "_modules", ()), *getattr(value, "_parameters", ()), *getattr(value, "_buffers", ())]
    names += [n for n in vars(value) if n not in names]
    return _named(name, [n for n in names if name.filled_by(n) is not None], lambda n: builtins.getattr(value, n))


def text_(*parts: Any) -> Any:
    """An f-string, in its parts."""
    unknown = [n for n, part in enumerate(parts) if is_open(part)]
    if not unknown:
        return "".join(map(format, parts))
    if len(unknown) > 1:
        raise RewriteError("a text is made of several numbers that only the running model knows")
    (place,) = unknown
    before, after = parts[:place], parts[place + 1 :]
    return Text("".join(map(format, before)), parts[place], "".join(map(format, after)))


def str_(value: Any = "") -> Any:
    """`str(value)`, without fixing a number."""
    return Text("", value, "") if isinstance(value, torch.SymInt) and is_open(value) else str(value)


def is_open(value: Any) -> bool:
    """Whether a value is a whole number that a capture must not fix."""
    if isinstance(value, torch.Tensor):
        whole = not value.dtype.is_floating_point and not value.dtype.is_complex
        return value.dim() == 0 and whole and torch.compiler.is_exporting()
    return isinstance(value, (torch.SymInt, torch.SymBool)) and not _is_known(value)


def _is_known(value: Any) -> bool:
    node = value.node
    return bool(node.is_constant() or node.expr.is_number)


def _whole(index: Any) -> torch.Tensor:
    return index.to(torch.int64) if isinstance(index, torch.Tensor) else as_number_tensor(index, torch.int64)


def _named(text: Text, names: list[Any], value: Callable[[Any], Any]) -> Any:
    if not names:
        raise RewriteError("no entry has a name that fits, whatever its number is")
    candidates = [(number, value(n)) for n in names if (number := text.filled_by(n)) is not None]
    return _picked(candidates, _whole(text.number))


def _picked(candidates: Candidates, number: torch.Tensor) -> Any:
    if not candidates:
        raise RewriteError("something is picked from an empty list")
    if all(callable(value) for _, value in candidates):
        return Picked(candidates, number)
    return _by_halves(candidates, number, lambda value: value)


def _by_halves(candidates: Candidates, number: torch.Tensor, use: Callable[[Any], Any]) -> Any:
    ordered = sorted(candidates, key=lambda c: c[0])
    if len(ordered) == 1:
        return use(ordered[0][1])
    middle = len(ordered) // 2
    return cond(
        number < ordered[middle][0],
        lambda: _by_halves(ordered[:middle], number, use),
        lambda: _by_halves(ordered[middle:], number, use),
    )


# `x[:50]` of an axis whose size varies: it ends at 50 or at the size, as the running model knows.
#
# torch.export settles by the example which of the two it is.

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
        numbers = (tensor.shape[axis], one.start, one.stop) if isinstance(one, slice) else ()
        varies = any(isinstance(number, torch.SymInt) for number in numbers)
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
        index = index + size * torch.sym_min(torch.sym_max(-index, 0), 1)  # from the end, where it is negative
    index = index if surely(index >= 0) else torch.sym_max(index, 0)
    return index if surely(index <= size) else torch.sym_min(index, size)
