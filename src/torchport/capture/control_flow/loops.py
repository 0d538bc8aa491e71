"""A loop whose end only the running model knows, traced as one iteration."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchport.capture.control_flow.dynamic_lists import Columns, Ragged, Rows, as_number_tensor
from torchport.capture.control_flow.merging import (
    Number,
    Unset,
    as_rows,
    column,
    copies,
    fitted,
    flatten,
    from_number_tensor,
    is_whole,
    number_type,
    places_in,
    same,
)
from torchport.capture.control_flow.tracing import active_modes, carrying, rehearse, sizes_in, unrecorded, with_inputs
from torchport.capture.origins import place, site_of_stack
from torchport.errors import RewriteError
from torchport.results import Finding
from torchport.torch_compat.higher_order import known_symbols, loop, symbols_of
from torchport.torch_compat.shape_env import fresh_size, statically_known_true
from torchport.torch_compat.tracing import disable_proxy_modes_tracing

_ROUNDS = 8  # rehearsals until what a loop carries stays the same


@dataclasses.dataclass(frozen=True)
class _Empty:
    """A list that is empty before the loop, and what its items look like."""

    sizes: list[Any]
    dtype: torch.dtype
    unknown: set[int]
    numbers: bool


@dataclasses.dataclass
class Carried:
    """One value of the state, and what is known of how it changes.

    Attributes:
        name: the variable it belongs to.
        initial: its value before the loop.
        kind: ``constant`` while no round changes it, then ``number``, ``tensor`` or ``rows``.
        sizes: of the tensor before the first round.
        changing: the axes whose size changes from round to round.
        one_row: each round appends just one item to the list, and none reads it.
        numbers: whether a list holds whole numbers.
        in_place: it is one tensor all the time, which each round writes to.
    """

    name: str
    initial: Any
    kind: str
    dtype: torch.dtype = torch.float32
    sizes: list[Any] = dataclasses.field(default_factory=list)
    changing: set[int] = dataclasses.field(default_factory=set)
    one_row: bool = False
    numbers: bool = False
    in_place: bool = False

    @classmethod
    def of(cls, name: str, value: Any) -> Carried:
        if isinstance(value, torch.Tensor):
            return cls(name, value, "tensor", value.dtype, list(value.shape))
        if isinstance(value, Rows):
            block = value.tensor()
            return cls(name, value, "rows", block.dtype, list(block.shape), {0}, numbers=value.numbers)
        if isinstance(value, _Empty):
            sizes = [0 if axis in value.unknown else size for axis, size in enumerate(value.sizes)]
            changing = {0, *(axis + 1 for axis in value.unknown)}
            return cls(name, value, "rows", value.dtype, [0, *sizes], changing, numbers=value.numbers)
        return cls(name, value, "constant")

    def sample(self) -> Any:
        """A value to rehearse with: what does not stay the same is unknown."""
        if self.kind == "constant":
            return self.initial
        sizes = [fresh_size() if axis in self.changing else size for axis, size in enumerate(self.sizes)]
        return self.present(torch.empty(sizes, dtype=self.dtype).clone())

    def unread(self) -> Rows:
        """A list to append one item to, of which the body reads nothing."""
        return Rows(torch.zeros([0] * len(self.sizes), dtype=self.dtype), numbers=self.numbers)

    def present(self, tensor: torch.Tensor) -> Any:
        """The value as the user's code sees it."""
        if self.kind == "rows":
            return Rows(tensor, numbers=self.numbers)
        return from_number_tensor(tensor, self.dtype) if self.kind == "number" else tensor

    def start(self) -> torch.Tensor:
        """The tensor before the first round."""
        if self.kind == "rows":
            return (
                self.initial.tensor() if isinstance(self.initial, Rows) else torch.zeros(self.sizes, dtype=self.dtype)
            )
        if isinstance(self.initial, torch.Tensor):
            return self.initial
        if isinstance(self.initial, Unset):
            return torch.zeros(self.sizes, dtype=self.dtype)
        if self.sizes:
            return torch.full(self.sizes, self.initial, dtype=self.dtype)
        return as_number_tensor(self.initial, self.dtype)

    def tensor(self, value: Any) -> torch.Tensor:
        """What a round gave, as a tensor to carry on."""
        if self.kind == "rows":
            return value.tensor()
        if isinstance(value, torch.Tensor):
            return value.to(self.dtype)
        return as_number_tensor(value, self.dtype)

    def learn(self, given: Any, new: Any, known: set[Any]) -> bool:
        """Take in what a round made of the value; whether that was news."""
        before = (self.kind, self.dtype, len(self.sizes), frozenset(self.changing))
        if isinstance(new, Rows) or isinstance(given, Rows):
            self._learn_rows(given, new)
        elif isinstance(new, torch.Tensor):
            self._learn_tensor(given, new, known)
        elif self.kind == "constant" and same(self.initial, new):
            pass
        elif isinstance(new, Unset):
            pass  # a variable this round did not set
        elif isinstance(new, Number) and (isinstance(self.initial, (Number, Unset)) or self.kind != "constant"):
            self._learn_number(new)
        else:
            raise RewriteError(f"the loop changes {self.name} from {self.initial!r} to {new!r}, which is no tensor")
        return before != (self.kind, self.dtype, len(self.sizes), frozenset(self.changing))

    def _learn_number(self, new: Any) -> None:
        if isinstance(self.initial, Unset) and self.kind == "constant":
            self.initial = type(new)(0) if isinstance(new, (bool, int, float)) else 0
            self.dtype = number_type(new)
        elif self.kind == "constant":
            self.dtype = torch.promote_types(number_type(self.initial), number_type(new))
        elif isinstance(self.initial, torch.Tensor):
            if self.sizes:
                raise RewriteError(f"the loop changes {self.name} from a tensor of rank {len(self.sizes)} to a number")
            return
        else:
            self.dtype = torch.promote_types(self.dtype, number_type(new))
        if self.kind == "constant":
            self.kind = "number"

    def _learn_tensor(self, given: Any, new: torch.Tensor, known: set[Any]) -> None:
        if isinstance(self.initial, torch.Tensor):
            if new.dtype != self.dtype:
                raise RewriteError(f"the loop changes the type of {self.name} from {self.dtype} to {new.dtype}")
            if new.dim() != len(self.sizes):
                raise RewriteError(f"the loop changes the rank of {self.name} from {len(self.sizes)} to {new.dim()}")
        elif not isinstance(self.initial, (Unset, *Number)):
            raise RewriteError(f"the loop changes {self.name} from {self.initial!r} to a tensor")
        elif self.kind != "tensor" or new.dim() != len(self.sizes):
            if self.kind == "tensor" and self.sizes:
                raise RewriteError(f"the loop changes the rank of {self.name} from {len(self.sizes)} to {new.dim()}")
            self.kind = "tensor"
            self.dtype = new.dtype
            self.sizes = [size if symbols_of(size) <= known else 0 for size in new.shape]
            self.changing = {axis for axis, size in enumerate(new.shape) if not symbols_of(size) <= known}
            return
        else:
            self.dtype = torch.promote_types(self.dtype, new.dtype)
        if isinstance(given, torch.Tensor) and given.dim() == new.dim():
            pairs = enumerate(zip(given.shape, new.shape, strict=True))
            self.changing |= {axis for axis, (a, b) in pairs if not _equal(a, b)}

    def _learn_rows(self, given: Any, new: Any) -> None:
        if not isinstance(new, Rows):
            raise RewriteError(f"the loop puts something else in place of the list {self.name}")
        shape = new.block.shape if not new.added else (0, *new.added[-1].shape)
        if isinstance(given, Rows):
            pairs = enumerate(zip(given.block.shape, shape, strict=True))
            self.changing |= {axis for axis, (a, b) in pairs if axis and not _equal(a, b)}


def _equal(left: Any, right: Any) -> bool:
    with disable_proxy_modes_tracing():
        return left is right or statically_known_true(left == right)


class Loop:
    """Finds out what a loop carries, then traces it.

    Args:
        step: ``(number, *state) -> (stop, *state)``.
        trip: how many rounds at most; None for no limit.
        start: whether to run the first round.
        names: of the state's variables.
        sizes: that the step finds outside.
    """

    def __init__(
        self, step: Callable[..., Any], trip: Any, start: torch.Tensor, names: Sequence[str], sizes: Sequence[Any]
    ) -> None:
        self._step = step
        self._trip = trip
        self._start = start
        self._names = names
        self._sizes = sizes

    def run(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The state after the loop; attributes of the model and of objects that it sets are set."""
        places = rehearse(self._round, tuple(copies(state)), torch.zeros((), dtype=torch.int64)).changed
        if not places:
            return self._run(state)
        step = carrying(self._step, places)

        def whole(number: torch.Tensor, *now: Any) -> Any:
            values, (stop, *new) = step(*now[: len(places)], number, *now[len(places) :])
            return (stop, *values, *new)

        names = [*(p.key for p in places), *self._names]
        loop = Loop(whole, self._trip, self._start, names, self._sizes)
        values = loop._run((*(p.get() for p in places), *state))
        for changed, value in zip(places, values, strict=False):
            changed.set(value)
        return values[len(places) :]

    def _run(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        carried, spec, outside, written, stops = self._rehearse(state)
        modes = active_modes()
        moving = [c for c in carried if c.kind != "constant"]
        kept = [c for c in moving if not c.one_row]

        def body(number: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values = iter(inputs[: len(kept)])
            now = [
                c.initial if c.kind == "constant" else c.unread() if c.one_row else c.present(next(values))
                for c in carried
            ]
            rest = inputs[len(kept) :]
            result, after = with_inputs(self._step, (number, *spec.unflatten(now)), [*written, *outside], rest, modes)
            stop, *new = result
            leaves = fitted(tuple(new), spec)
            going = torch.logical_not(stop) if isinstance(stop, torch.Tensor) else torch.full((), not stop)
            pairs = list(zip(carried, leaves, strict=True))
            outputs = [c.tensor(v) for c, v in pairs if c.kind != "constant" and not c.one_row]
            rows = [v.added[-1] for c, v in pairs if c.one_row]
            return tuple(t.clone() for t in (going, *outputs, *after[: len(written)], *rows))

        starts = [c.start() for c in kept]
        outputs = loop(
            self._trip,
            self._start,
            body,
            [*starts, *written],
            [*outside, *sizes_in(self._sizes, [c.initial for c in carried if c.kind == "constant"])],
            [*(sorted(c.changing) for c in kept), *([] for _ in written)],
            stops,
        )
        for tensor, value in zip(written, outputs[len(kept) :], strict=False):
            tensor.copy_(value)
        finals = iter(outputs[: len(kept)])
        rows = iter(outputs[len(kept) + len(written) :])
        last: list[Any] = []
        for c in carried:
            if c.kind == "constant":
                last.append(c.initial)
            elif c.one_row:
                added = next(rows)
                block = torch.cat([c.start(), added]) if isinstance(c.initial, Rows) else added
                last.append(Rows(block, numbers=c.numbers))
            elif c.in_place:  # what shares its memory sees it too
                last.append(c.initial.copy_(next(finals)))
            else:
                last.append(c.present(next(finals)))
        return tuple(spec.unflatten(last))

    def _rehearse(
        self, state: tuple[Any, ...]
    ) -> tuple[list[Carried], Any, list[torch.Tensor], list[torch.Tensor], bool]:
        """Rounds on fake tensors until nothing new is learned."""
        state = self._lists_as_rows(state)
        leaves, spec = flatten(state)
        names = [
            self._names[n] if n < len(self._names) else "a value"
            for n, value in enumerate(state)
            for _ in flatten(value)[0]
        ]
        carried = [Carried.of(f"'{name}'", leaf) for name, leaf in zip(names, leaves, strict=True)]
        for _ in range(_ROUNDS):
            known = known_symbols()
            with unrecorded():
                now = [c.sample() for c in carried]
            number = torch.zeros((), dtype=torch.int64)
            rehearsal = rehearse(self._round, spec.unflatten(list(now)), number)
            stop, *new = rehearsal.result
            new_leaves = self._fitted(spec, tuple(new))
            news = [c.learn(g, n, known) for c, g, n in zip(carried, now, new_leaves, strict=True)]
            if not any(news):
                break
        else:
            raise RewriteError("what the loop carries changes its sizes or types in every round")
        own = {id(v) for v in now if isinstance(v, torch.Tensor)}
        blocks = {id(v.block): c for c, v in zip(carried, now, strict=True) if isinstance(v, Rows)}
        used = {id(t) for t in rehearsal.outside}
        for c, given, value in zip(carried, now, new_leaves, strict=True):
            if c.kind == "rows" and value.block is given.block and len(value.added) == 1:
                c.one_row = id(given.block) not in used and c.changing == {0}
            c.in_place = isinstance(c.initial, torch.Tensor) and rehearsal.is_written_only(given, value)
        skip = own | set(blocks) | {id(number)}
        outside = [t for t in rehearsal.outside if id(t) not in skip]
        written = [t for t in rehearsal.written if id(t) not in skip]
        outside = [t for t in outside if not any(t is w for w in written)]
        tensors = [*(c.initial for c in carried if isinstance(c.initial, torch.Tensor)), *outside, *written]
        for c, given in zip(carried, now, strict=True):
            if isinstance(c.initial, torch.Tensor) and any(given is w for w in rehearsal.written):
                look_for_shared(c.name, c.initial, tensors)
        return carried, spec, outside, written, not (isinstance(stop, bool) and not stop)

    def _round(self, state: tuple[Any, ...], number: torch.Tensor) -> Any:
        return self._step(number, *state)

    def _fitted(self, spec: Any, new: tuple[Any, ...]) -> list[Any]:
        try:
            return fitted(new, spec)
        except ValueError as error:
            raise RewriteError(f"the loop changes the structure of its variables: {error}") from error

    def _lists_as_rows(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Lists that a round makes longer; missing values in the structure they get."""
        number = torch.zeros((), dtype=torch.int64)
        known = known_symbols()
        rehearsal = rehearse(self._round, tuple(copies(state)), number)
        _, *new = rehearsal.result
        return tuple(self._as_rows(a, b, known) for a, b in zip(state, new, strict=True))

    def _as_rows(self, before: Any, after: Any, known: set[Any]) -> Any:
        if isinstance(before, Unset):
            leaves, spec = flatten(after)
            return spec.unflatten([before] * len(leaves))
        if type(before) is not list:
            return before
        if isinstance(after, Rows):
            sizes, dtype, numbers = list(after.block.shape[1:]), after.block.dtype, after.numbers
        elif isinstance(after, Ragged):
            return Ragged.of(before, after.axis) if before else Ragged.none(after, after.axis)
        elif isinstance(after, Columns) or (type(after) is list and len(after) > len(before)):
            places = places_in(after)
            if places is not None:
                return Columns([self._as_rows(column(before, n), column(after, n), known) for n in range(places)])
            item = after[-1]
            if not isinstance(item, (torch.Tensor, *Number)):
                raise RewriteError(
                    f"the loop appends {type(item).__name__} to a list; only tensors, numbers and tuples of them can be"
                )
            sizes = list(item.shape) if isinstance(item, torch.Tensor) else []
            dtype = item.dtype if isinstance(item, torch.Tensor) else number_type(item)
            numbers = is_whole(item)
        else:
            return before
        unknown = {axis for axis, size in enumerate(sizes) if not symbols_of(size) <= known}
        if len(unknown) == 1 and type(after) is list:
            (axis,) = unknown
            return Ragged.of(before, axis) if before else Ragged.none(after, axis)
        return as_rows(before) if before else _Empty(sizes, dtype, unknown, numbers)


# Tensors that share memory inside of a loop: a view that is written, beside what it is a view of.
#
# In the graph each is a value of its own, so that a write to one is not seen in the other before the loop ends. Whether
# that matters only the proof can tell; if it does, this is why.

_noticed: list[Finding] = []


@contextlib.contextmanager
def noticing() -> Iterator[list[Finding]]:
    """Collect the loops in which this happens, each with its line."""
    _noticed.clear()
    found: list[Finding] = []
    try:
        yield found
    finally:
        found += dict.fromkeys(_noticed)
        _noticed.clear()


def look_for_shared(name: str, written: torch.Tensor, used: Sequence[torch.Tensor]) -> None:
    """Notice a tensor that the running loop writes, if it uses one with the same memory too."""
    site = site_of_stack(sys._getframe(1))
    if site is not None and any(t is not written and _memory(t) == _memory(written) for t in used):
        what = f"the loop writes to {name}, which shares its memory with another tensor that the loop uses"
        _noticed.append(Finding(what, place(site.codes[0].co_filename, site.line)))


def _memory(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
