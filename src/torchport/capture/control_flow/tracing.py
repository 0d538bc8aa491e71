"""Run a Python function so that outer tensors come in as arguments, and changed attributes as results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.control_flow.dynamic_lists import OpenList, Rows
from torchport.capture.control_flow.iteration import Items
from torchport.capture.control_flow.merging import UNSET, Number, Unset
from torchport.capture.control_flow.source import parts_of, plain_objects
from torchport.torch_compat.higher_order import apart
from torchport.torch_compat.shape_env import sizes_of
from torchport.torch_compat.tracing import (
    disable_proxy_modes_tracing,
    fake_mode,
    function_modes,
    tree_leaves,
    tree_map,
    tree_map_only,
    unnoted,
)

# Run a Python function so that every tensor it takes from outside comes in through arguments.
#
# `torch.cond` and our loop trace a branch as a graph of its own: a parameter, a buffer or a local variable of the
# caller must be one of its inputs. A rehearsal on fake tensors finds out which; the real run replaces each by the input
# that stands for it. Tensors the function writes to are found the same way.
#
# The stack of modes is private to torch; one of them is how torch.export handles symbolic indices.


_FIXED: tuple[Any, ...] = (torch.Tensor.dtype, torch.Tensor.device, torch.Tensor.ndim)


def _is_fixed(func: Any) -> bool:
    """Check that a function reads what no round and no size changes."""
    return func is torch.Tensor.dim or any(getattr(func, "__self__", None) is attribute for attribute in _FIXED)


class _Boundary(TorchFunctionMode):
    """Replaces tensors from outside by those that stand for them."""

    is_boundary = True  # of a branch or a round, in which no tensor's numbers are known

    def __init__(self, known: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None) -> None:
        super().__init__()
        self._rehearsal = known is None
        self.outside = known or {}  # by id: the tensor and what stands for it; the tensor is kept alive
        self._made: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_fixed(func):  # no use of the tensor: a list that is only appended to reads them too
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(lambda leaf: _inside(leaf, self), (args, kwargs or {}))
        with unnoted() if self._rehearsal else contextlib.nullcontext():
            result = func(*args, **kwargs)
        tree_map_only(torch.Tensor, self._keep, result.block if isinstance(result, Rows) else result)
        return result

    def inside(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor; itself when it was made inside."""
        if id(tensor) in self.outside:
            return self.outside[id(tensor)][1]
        if id(tensor) in self._made:
            return tensor
        if not self._rehearsal:
            return tensor  # a constant made without torch noticing
        copy = tensor.clone()
        self._keep(copy)
        self.outside[id(tensor)] = (tensor, copy)
        return copy

    def _keep(self, tensor: torch.Tensor) -> None:
        self._made[id(tensor)] = tensor


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a function gave on fake tensors.

    Attributes:
        result: its result, any structure.
        outside: the tensors it took from outside.
        written: those of them it wrote to.
        changed: the attributes of the model, and of objects, that it set.
        stand_ins: what stood for each tensor from outside, in order.
    """

    result: Any
    outside: list[torch.Tensor]
    written: list[torch.Tensor]
    changed: list[Place]
    stand_ins: list[torch.Tensor]

    def is_written_only(self, tensor: torch.Tensor, given: Any) -> bool:
        """Whether a tensor from outside was written to in place, and is what was given back in its stead."""
        pairs = zip(self.outside, self.stand_ins, strict=True)
        return any(t is tensor for t in self.written) and any(t is tensor and s is given for t, s in pairs)


def rehearse(function: Callable[..., Any], *arguments: Any, lists: bool = False) -> Rehearsal:
    """Run a function on fake tensors; nothing of it is recorded.

    Args:
        function: a side of a branch, or a round of a loop.
        arguments: what it is given.
        lists: a list that it gives back is put together there, so that the tensors behind it are used.
    """
    with unrecorded(), apart(), undone(function, arguments) as changed, _Boundary() as boundary:
        result = function(*arguments)
        if lists:
            result = tree_map(lambda leaf: _inside(leaf, boundary), result)
        else:
            result = tree_map_only(torch.Tensor, boundary.inside, result)
    pairs = list(boundary.outside.values())
    written = [tensor for tensor, copy in pairs if copy._version > 0]
    return Rehearsal(result, [tensor for tensor, _ in pairs], written, changed, [copy for _, copy in pairs])


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Nothing done here becomes part of the graph."""
    with disable_proxy_modes_tracing(), fake_mode().shape_env.ignore_fresh_unbacked_symbols():
        yield


def sizes_in(*values: Any) -> list[torch.SymInt]:
    """The sizes a function finds outside: in its closure, in what is handed to it, and in quotients of sizes there."""
    found: dict[str, torch.SymInt] = {}
    seen: set[int] = set()

    def look(value: Any) -> None:
        if isinstance(value, torch.SymInt):
            found.setdefault(str(value.node.expr), value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            found.update((str(size.node.expr), size) for size in sizes_of(value) if str(size.node.expr) not in found)
        if isinstance(value, (torch.Tensor, OpenList)) or id(value) in seen:
            return
        seen.add(id(value))
        for part in parts_of(value):
            look(part)
        if isinstance(value, Items):
            look(vars(value))

    for value in values:
        look(value)
    return list(found.values())


def together(*lists: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All tensors of these lists, each once."""
    return list({id(t): t for tensors in lists for t in tensors}.values())


def _inside(leaf: Any, boundary: _Boundary) -> Any:
    if isinstance(leaf, Rows):
        return Rows(boundary.inside(leaf.block), [boundary.inside(t) for t in leaf.added], numbers=leaf.numbers)
    return boundary.inside(leaf) if isinstance(leaf, torch.Tensor) else leaf


def listed_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors behind the lists in a structure."""
    leaves = tree_leaves(value)
    return [t for leaf in leaves if isinstance(leaf, Rows) for t in (leaf.block, *leaf.added)]


def active_modes() -> list[TorchFunctionMode]:
    """The modes that a branch needs as its surroundings have them: an operator takes them off on its way.

    Not this file's own, and not those of torch's tracer, which puts up its own for each graph.
    """
    return [mode for mode in function_modes() if not isinstance(mode, _Boundary)]


def with_inputs(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    outside: Sequence[torch.Tensor],
    inputs: Sequence[Any],
    modes: Sequence[TorchFunctionMode],
) -> tuple[Any, list[torch.Tensor]]:
    """Run a function with inputs in place of the tensors from outside.

    Returns:
        Its result, and what became of each input, which differs from it where the function writes.
    """
    stand_ins = [t.clone() for t in inputs[: len(outside)]]  # sizes may follow; they are known by what they are
    known = {id(o): (o, s) for o, s in zip(outside, stand_ins, strict=True)}
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        boundary = stack.enter_context(_Boundary(known))
        result = function(*arguments)
        result = tree_map(lambda leaf: _inside(leaf, boundary), result)
    return result, stand_ins


# Attributes that a branch or a round of a loop changes: part of what it gives, like a variable.
#
# Both sides of an `if` are run while they are traced, but only one of them is meant. So what each does to the model,
# and to the plain objects it finds, is noticed, undone, and carried along as values.

_CARRIED = (torch.Tensor, *Number, str, list, tuple, dict, type(None), Unset)
_watched: list[torch.nn.Module] = []


@contextlib.contextmanager
def watching(model: Any) -> Iterator[None]:
    """Notice what is changed in this model."""
    _watched[:] = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    try:
        yield
    finally:
        _watched.clear()


@dataclasses.dataclass(frozen=True)
class Place:
    """An attribute, a buffer or a parameter: an entry of a dictionary of a module or an object."""

    holder: Any
    key: str

    def get(self) -> Any:
        return self.holder.get(self.key, UNSET)

    def set(self, value: Any) -> None:
        if isinstance(value, Unset):
            self.holder.pop(self.key, None)
        else:
            self.holder[self.key] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.holder is other.holder and self.key == other.key

    def __hash__(self) -> int:
        return hash((id(self.holder), self.key))


@contextlib.contextmanager
def undone(*found: Any) -> Iterator[list[Place]]:
    """Undo what is done to the model and to objects; at the end the list holds the places that were changed.

    Args:
        found: functions and values, in which the objects are looked for.
    """
    holders: list[Any] = [h for m in _watched for h in (m.__dict__, m._buffers, m._parameters)]
    of_objects = [vars(o) for o in plain_objects(*found)]
    before = [dict(h) for h in (*holders, *of_objects)]
    changed: list[Place] = []
    try:
        yield changed
    finally:
        for number, (holder, then) in enumerate(zip((*holders, *of_objects), before, strict=True)):
            different = [k for k in {**holder, **then} if holder.get(k, UNSET) is not then.get(k, UNSET)]
            if number >= len(holders):  # what cannot be carried an object may keep, as a thing it found out once
                different = [k for k in different if isinstance(holder.get(k, UNSET), _CARRIED)]
            changed += [Place(holder, key) for key in different]
            for key in different:
                Place(holder, key).set(then.get(key, UNSET))


def carrying(function: Callable[..., Any], places: Sequence[Place]) -> Callable[..., Any]:
    """A function that takes the values of these places first, and gives the new ones first."""

    def carried(*arguments: Any) -> Any:
        before = [p.get() for p in places]
        try:
            for place, value in zip(places, arguments, strict=False):
                place.set(value)
            result = function(*arguments[len(places) :])
            return [p.get() for p in places], result
        finally:
            for place, value in zip(places, before, strict=True):
                place.set(value)

    return carried
