"""What rewritten code calls in place of `if`, `while`, `for` and their kin.

A plain value takes plain Python's way, so rewritten code runs as the original did. A tensor, or a size that is not
known, under torch.export becomes one of the two operators of `operators.py`, with both ways in the graph.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchport.capture.rewrite.attributes import carrying
from torchport.capture.rewrite.items import Enumerated, Items, Numbers, Range, Reversed, Zipped, items_of
from torchport.capture.rewrite.lifting import (
    active_modes,
    listed_tensors,
    rehearse,
    sizes_in,
    together,
    unrecorded,
    with_inputs,
)
from torchport.capture.rewrite.loops import Loop
from torchport.capture.rewrite.merging import UNSET, as_number_tensor, copies, fitted, merged
from torchport.capture.rewrite.operators import choice, known_symbols
from torchport.capture.rewrite.picking import at, getattr_, str_, text_
from torchport.capture.rewrite.refusal import RewriteError
from torchport.capture.rewrite.rows import OpenList, Rows

__all__ = ["UNSET", "at", "cond", "for_loop", "getattr_", "str_", "text_", "while_loop"]


def cond(test: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *state: Any) -> Any:
    """`then(*state)` or `otherwise(*state)`, as `test` says."""
    truth = _truth(test)
    if isinstance(truth, bool):
        return (then if truth else otherwise)(*state)
    known = known_symbols()
    first, second = rehearse(then, *copies(state)), rehearse(otherwise, *copies(state))
    places = list(dict.fromkeys([*first.changed, *second.changed]))
    if places:
        sides = [carrying(side, places) for side in (then, otherwise)]
        values, result = cond(truth, *sides, *(p.get() for p in places), *state)
        for place, value in zip(places, values, strict=True):
            place.set(value)
        return result
    outside = together(first.outside, second.outside, listed_tensors(state))
    written = together(first.written, second.written)
    names = _parameters(then)
    with unrecorded():
        plan, spec = merged(first.result, second.result, lambda n: _named(names, n), known)
    modes = active_modes()
    moving = [n for n, leaf in enumerate(plan) if leaf.kind not in ("constant", "unset")]

    def branch(function: Callable[..., Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
        def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result, stand_ins = with_inputs(function, copies(state), outside, inputs, modes)
            values = fitted(result, spec)
            after = [s for s, o in zip(stand_ins, outside, strict=True) if any(o is w for w in written)]
            return tuple(t.clone() for t in (*(plan[n].to_tensor(values[n]) for n in moving), *after))

        return run

    if not moving and not written:
        return spec.unflatten([leaf.value for leaf in plan])
    inputs = [*outside, *sizes_in(then, otherwise, state)]
    outputs = choice(truth, branch(then), branch(otherwise), inputs)
    _write_back(outside, written, outputs[len(moving) :])
    values = [leaf.value for leaf in plan]
    for n, tensor in zip(moving, outputs, strict=False):
        values[n] = plan[n].from_tensor(tensor)
    return spec.unflatten(values)


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code is not None else ()


def _named(names: tuple[str, ...], number: int) -> str:
    return f"'{names[number]}'" if number < len(names) else "the result"


def _write_back(outside: list[torch.Tensor], written: list[torch.Tensor], values: Any) -> None:
    order = [o for o in outside if any(o is w for w in written)]
    for tensor, value in zip(order, values, strict=True):
        tensor.copy_(value)


def while_loop(test: Callable[..., Any], step: Callable[..., Any], *state: Any) -> Any:
    """Run `step(*state)`, which gives whether to stop and the new state, while `test(*state)` holds."""
    while True:
        truth = _truth(test(*state))
        if not isinstance(truth, bool):
            break
        if not truth:
            return state
        stop, *new = step(*state)
        state = tuple(new)
        stop = _truth(stop)
        if not isinstance(stop, bool):
            truth = _truth(and_(not_(stop), functools.partial(test, *state)))
            break
        if stop:
            return state

    def round_(_: Any, *now: Any) -> Any:
        stop, *new = step(*now)
        return (or_(stop, lambda: not_(test(*new))), *new)

    names = _parameters(step)
    return Loop(round_, None, truth, names, sizes_in(test, step)).run(state)


def for_loop(iterable: Any, step: Callable[..., Any], *state: Any) -> Any:
    """Run `step(item, *state)`, which gives whether to stop and the new state, for each item."""
    items = items_of(iterable)
    if items is None or isinstance(items.length(), int):
        return _unrolled(iter(iterable), step, state)
    names = _parameters(step)[1:]
    length = items.length()
    try:
        return _loop_from(0, items, length, step, names, state)
    except RewriteError:
        # the first round may be another than the rest: `h = None`, a sum that starts as a number
        first = step(items.at(0), *state)
        if not isinstance(first[0], bool) or first[0]:
            raise
        return _loop_from(1, items, length, step, names, tuple(first[1:]))


def _loop_from(
    skip: int, items: Items, length: Any, step: Callable[..., Any], names: tuple[str, ...], state: tuple[Any, ...]
) -> Any:
    def round_(number: torch.Tensor, *now: Any) -> Any:
        index = number.item() + skip
        _recall(index >= skip)
        _recall(index < length)
        return step(items.at(index), *now)

    start = torch.ones((), dtype=torch.bool)
    return Loop(round_, length - skip, start, names, sizes_in(step, items, length)).run(state)


def _recall(condition: Any) -> None:
    """Tell torch what holds, in the graph too: it is run again, and must not be wondered about then."""
    if isinstance(condition, torch.SymBool):
        torch.ops.aten._assert_scalar.default(condition, "a round's number")


def _unrolled(iterator: Iterator[Any], step: Callable[..., Any], state: tuple[Any, ...]) -> Any:
    """Round after round in Python; once a tensor says whether to stop, the rest are rounds that may be skipped."""
    stopped: Any = False
    for item in iterator:
        if stopped is True:
            break
        stopped, *new = cond(stopped, _skipped, functools.partial(step, item), *state)
        stopped, state = _truth(stopped), tuple(new)
    return state


def _skipped(*state: Any) -> Any:
    return (True, *state)


def _truth(value: Any) -> Any:
    """A bool where Python can know it, else a tensor without axes."""
    if isinstance(value, torch.Tensor):
        if not torch.compiler.is_exporting():
            return bool(value)
        if value.numel() != 1:
            raise RewriteError(f"the truth of a tensor with {value.numel()} elements is asked")
        value = value.reshape(())
        return value if value.dtype is torch.bool else value != 0
    if isinstance(value, (OpenList, Items)):
        value = value.length() > 0
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        value = value != 0
    if isinstance(value, torch.SymBool):
        if statically_known_true(value):
            return True
        if statically_known_true(torch.sym_not(value)):
            return False
        return as_number_tensor(value, torch.bool)
    return bool(value)


def and_(first: Any, *rest: Callable[[], Any]) -> Any:
    """`first and rest...`, each looked at only if those before it hold."""
    return _joined(first, rest, True)


def or_(first: Any, *rest: Callable[[], Any]) -> Any:
    """`first or rest...`, each looked at only if none before it holds."""
    return _joined(first, rest, False)


def _joined(value: Any, rest: tuple[Callable[[], Any], ...], goes_on: bool) -> Any:
    for number, further in enumerate(rest):
        truth = _truth(value)
        if not isinstance(truth, bool):
            others = functools.partial(_joined_truth, further, rest[number + 1 :], goes_on)
            settled = functools.partial(_same, not goes_on)
            return cond(truth, others, settled) if goes_on else cond(truth, settled, others)
        if truth is not goes_on:
            return value
        value = further()
    return value


def _joined_truth(first: Callable[[], Any], rest: tuple[Callable[[], Any], ...], goes_on: bool) -> Any:
    return _truth(_joined(first(), rest, goes_on))


def not_(value: Any) -> Any:
    truth = _truth(value)
    return not truth if isinstance(truth, bool) else torch.logical_not(truth)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def compare(first: Any, *pairs: Any) -> Any:
    """A chained comparison: ``compare(a, "<", lambda: b, "<", lambda: c)``."""
    result: Any = True
    left = first
    for sign, further in zip(pairs[::2], pairs[1::2], strict=True):
        right = further()
        holds = _COMPARE[sign](left, right)
        result = holds if result is True else and_(result, functools.partial(_same, holds))
        left = right
    return result


def _same(value: Any) -> Any:
    return value


def never(test: Any) -> bool:
    """Whether to raise. A graph has no exceptions: there it is taken for granted that none is raised."""
    truth = _truth(test)
    return truth if isinstance(truth, bool) else False


def holds(test: Callable[[], Any]) -> Any:
    """Whether an assertion holds. A graph has no assertions: there it is taken for granted, and not looked at."""
    return True if torch.compiler.is_exporting() else test()


def bool_(value: Any = False) -> Any:
    return _truth(value)


def int_(value: Any = 0, *base: Any) -> Any:
    """`int(value)`, without fixing a size or a tensor's value."""
    if isinstance(value, torch.Tensor) and torch.compiler.is_exporting():
        return value.reshape(()).to(torch.int64).item()
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return torch.sym_int(value)
    return builtins.int(value, *base)


def float_(value: Any = 0.0) -> Any:
    """`float(value)`, without fixing a size or a tensor's value."""
    if isinstance(value, torch.Tensor) and torch.compiler.is_exporting():
        exact = value.dtype in (torch.float32, torch.float64)
        return value.reshape(()).to(value.dtype if exact else torch.get_default_dtype())
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return torch.sym_float(value)
    return builtins.float(value)


def item_(value: Any) -> Any:
    """`value.item()`: a whole number may be a size; any other stays a tensor without axes."""
    if not isinstance(value, torch.Tensor) or not torch.compiler.is_exporting():
        return value.item()
    if value.dtype.is_floating_point:
        return float_(value)
    return value.reshape(()) if value.dtype is torch.bool else value.item()


def len_(value: Any) -> Any:
    """`len(value)`, without fixing a size."""
    if isinstance(value, torch.Tensor):
        return value.shape[0]
    return value.length() if isinstance(value, (OpenList, Items)) else builtins.len(value)


def min_(*values: Any, **options: Any) -> Any:
    """`min(...)` of sizes, without fixing them."""
    return _extreme(builtins.min, torch.sym_min, torch.minimum, values, options)


def max_(*values: Any, **options: Any) -> Any:
    """`max(...)` of sizes, without fixing them."""
    return _extreme(builtins.max, torch.sym_max, torch.maximum, values, options)


def _extreme(plain: Any, symbolic: Any, of_tensors: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
    stacked = _stacked(values[0]) if builtins.len(values) == 1 else None
    if stacked is not None:
        return _number(stacked.amax(0) if plain is builtins.max else stacked.amin(0), values[0])
    given = builtins.list(values[0]) if builtins.len(values) == 1 else builtins.list(values)
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    if not options and torch.compiler.is_exporting() and tensors:
        given = [v if isinstance(v, torch.Tensor) else torch.full((), v, dtype=tensors[0].dtype) for v in given]
        return _folded(of_tensors, given)
    if not options and builtins.any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in given):
        return _folded(symbolic, given)
    return plain(*values, **options)


def _folded(function: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def sqrt_(value: Any) -> Any:
    """`math.sqrt(value)`, without fixing a size."""
    if isinstance(value, torch.Tensor):
        return value.sqrt()
    return torch.sym_sqrt(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else math.sqrt(value)


def list_(value: Any = ()) -> Any:
    """`list(value)`; of a tensor or a list of unknown length, one of unknown length."""
    if isinstance(value, OpenList):
        return value.copy()
    if isinstance(value, Items) and _open(value):
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value.shape[0], int):
        return Rows(value)
    return builtins.list(value)


def tolist_(value: Any) -> Any:
    """`value.tolist()`, without fixing how many there are."""
    if isinstance(value, torch.Tensor) and value.dim() == 1 and not isinstance(value.shape[0], int):
        return Numbers(value)
    return value.tolist()


def sum_(values: Any, start: Any = 0) -> Any:
    stacked = _stacked(values)
    return builtins.sum(values, start) if stacked is None else _number(stacked.sum(0), values) + start


def any_(values: Any) -> Any:
    return _quantified(values, builtins.any, torch.any)


def all_(values: Any) -> Any:
    return _quantified(values, builtins.all, torch.all)


def _quantified(values: Any, plain: Callable[..., Any], of_tensor: Callable[..., Any]) -> Any:
    stacked = _stacked(values)
    if stacked is None and isinstance(values, builtins.list) and builtins.any(_open_truth(v) for v in values):
        stacked = torch.stack(
            [as_number_tensor(t, torch.bool) if isinstance(t, bool) else t for t in map(_truth, values)]
        )
    return plain(values) if stacked is None else of_tensor(stacked)


def _open_truth(value: Any) -> bool:
    return not isinstance(_truth(value), bool)


def _stacked(values: Any) -> torch.Tensor | None:
    """The one tensor behind a list of unknown length."""
    if isinstance(values, Rows):
        return values.tensor()
    return values.tensor if isinstance(values, Numbers) else None


def _number(value: torch.Tensor, of: Any) -> Any:
    """Whole numbers that came from a list of numbers are numbers again."""
    return item_(value) if isinstance(of, Numbers) or (isinstance(of, Rows) and of.numbers) else value


def range_(*arguments: Any) -> Any:
    """`range(...)`, of sizes that are not known too."""
    plain = [int_(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    return builtins.range(*plain) if builtins.all(isinstance(a, int) for a in plain) else Range(*plain)


def zip_(*iterables: Any, **options: Any) -> Any:
    parts = [items_of(i) for i in iterables]
    known = [p for p in parts if p is not None]
    if builtins.len(known) != builtins.len(parts) or not builtins.any(_open(p) for p in known):
        return builtins.zip(*iterables, **options)  # noqa: B905 - as the user wrote it
    return Zipped(known)


def enumerate_(iterable: Any, start: Any = 0) -> Any:
    items = items_of(iterable)
    return Enumerated(items, start) if items is not None and _open(items) else builtins.enumerate(iterable, start)


def reversed_(iterable: Any) -> Any:
    items = items_of(iterable)
    return Reversed(items) if items is not None and _open(items) else builtins.reversed(iterable)


def _open(items: Items) -> bool:
    return not isinstance(items.length(), int)


def collect(iterable: Any, item: Callable[[Any], Any], keep: Callable[[Any], Any] | None = None) -> Any:
    """`[item(i) for i in iterable if keep(i)]`"""

    def step(i: Any, collected: list[Any]) -> Any:
        if keep is None:
            collected.append(item(i))
            return False, collected

        def add(collected: list[Any]) -> Any:
            collected.append(item(i))
            return (collected,)

        def leave(collected: list[Any]) -> Any:
            return (collected,)

        (collected,) = cond(keep(i), add, leave, collected)
        return False, collected

    (collected,) = for_loop(iterable, step, [])
    return collected


def bound(value: Callable[[], Any]) -> Any:
    """A variable that may have no value yet."""
    try:
        return value()
    except NameError:
        return UNSET
