"""`if`, `and` and `or` at run time, and sizes after a branch that pads."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # torch brings it along
import torch

from torchport.capture.control_flow.dynamic_lists import OpenList, as_number_tensor
from torchport.capture.control_flow.iteration import Items, items_of
from torchport.capture.control_flow.loops import Loop
from torchport.capture.control_flow.merging import (
    Leaf,
    Unset,
    copies,
    either_number,
    either_slice,
    fitted,
    flatten,
    has_slices,
    merged,
    same,
)
from torchport.capture.control_flow.tracing import (
    active_modes,
    carrying,
    listed_tensors,
    rehearse,
    sizes_in,
    together,
    unrecorded,
    with_inputs,
)
from torchport.capture.repairs.value_dependent import known_truth
from torchport.errors import RewriteError
from torchport.torch_compat.higher_order import choice, known_symbols, symbols_of
from torchport.torch_compat.shape_env import surely
from torchport.torch_compat.tracing import assert_in_graph, fake_mode

# Branches and loops at run time.
#
# A plain value takes plain Python's way, so rewritten code runs as the original did. A tensor, or a size that is not
# known, under torch.export becomes one of the two operators of `operators.py`, with both ways in the graph.


def cond(test: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *state: Any) -> Any:
    """`then(*state)` or `otherwise(*state)`, as `test` says."""
    truth = truth_of(test)
    settled = truth if isinstance(truth, bool) else known_truth(truth)
    if settled is not None:
        return (then if settled else otherwise)(*state)
    known = known_symbols()
    first, second = (rehearse(side, *copies(state), lists=True) for side in (then, otherwise))
    places = list(dict.fromkeys([*first.changed, *second.changed]))
    if places:
        sides = [carrying(side, places) for side in (then, otherwise)]
        asked = test if isinstance(test, (torch.SymBool, torch.SymInt)) else truth
        values, result = cond(asked, *sides, *(p.get() for p in places), *state)
        for place, value in zip(places, values, strict=True):
            place.set(value)
        return result
    if not (first.outside or second.outside) and _of_sizes(test) and has_slices(first.result, second.result):
        return either_slice(test, then(*copies(state)), otherwise(*copies(state)))
    empty = _empty_in_one(test, first.result, second.result)
    if empty is not None:
        return cond(test, *(_with_empty(side, empty[n]) for n, side in enumerate((then, otherwise))), *state)
    outside = together(first.outside, second.outside, listed_tensors(state))
    written = together(first.written, second.written)
    names = _parameters(then)
    with unrecorded():
        plan, spec = merged(first.result, second.result, lambda n: _named(names, n), known)
        given = [fitted(side.result, spec) for side in (first, second)]
    plan = [_by_formula(test, leaf, a, b, known) for leaf, a, b in zip(plan, *given, strict=True)]
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
    told = [_sizes_after(test, plan[n], given[0][n], given[1][n], known) for n in moving]
    outputs = choice(truth, branch(then), branch(otherwise), inputs, [*told, *(None for _ in written)])
    _write_back(outside, written, outputs[len(moving) :])
    values = [leaf.value for leaf in plan]
    for n, tensor in zip(moving, outputs, strict=False):
        values[n] = plan[n].from_tensor(tensor)
    return spec.unflatten(values)


def _of_sizes(test: Any) -> bool:
    """Check that a condition is one on sizes of the inputs."""
    return isinstance(test, (torch.SymBool, torch.SymInt)) and bool(test.node.has_hint())


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
        truth = truth_of(test(*state))
        if not isinstance(truth, bool):
            break
        if not truth:
            return state
        stop, *new = step(*state)
        state = tuple(new)
        stop = truth_of(stop)
        if not isinstance(stop, bool):
            truth = truth_of(and_(not_(stop), functools.partial(test, *state)))
            break
        if stop:
            return state

    def round_(_: Any, *now: Any) -> Any:
        stop, *new = step(*now)
        return (or_(stop, lambda: truth_of(not_(test(*new)))), *new)

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
        assert_in_graph(condition, "a round's number")


def _unrolled(iterator: Iterator[Any], step: Callable[..., Any], state: tuple[Any, ...]) -> Any:
    """Round after round in Python; once a tensor says whether to stop, the rest are rounds that may be skipped."""
    stopped: Any = False
    for item in iterator:
        if stopped is True:
            break
        stopped, *new = cond(stopped, _skipped, functools.partial(step, item), *state)
        stopped, state = truth_of(stopped), tuple(new)
    return state


def _skipped(*state: Any) -> Any:
    return (True, *state)


def truth_of(value: Any) -> Any:
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
        if surely(value):
            return True
        if surely(torch.sym_not(value)):
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
        truth = truth_of(value)
        if not isinstance(truth, bool):
            others = functools.partial(_joined_truth, further, rest[number + 1 :], goes_on)
            settled = functools.partial(_same, not goes_on)
            return cond(truth, others, settled) if goes_on else cond(truth, settled, others)
        if truth is not goes_on:
            return value
        value = further()
    return value


def _joined_truth(first: Callable[[], Any], rest: tuple[Callable[[], Any], ...], goes_on: bool) -> Any:
    return truth_of(_joined(first(), rest, goes_on))


def not_(value: Any) -> Any:
    truth = truth_of(value)
    if isinstance(truth, bool):
        return not truth
    return torch.sym_not(value) if isinstance(value, torch.SymBool) else torch.logical_not(truth)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "in": lambda value, holder: _is_member(value, holder),
    "not in": lambda value, holder: not_(_is_member(value, holder)),
}


def _is_member(value: Any, holder: Any) -> Any:
    """``value in holder``; a number that only the running model knows is compared with each item."""
    known = not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat))
    if known or not isinstance(holder, (tuple, list, range, set, frozenset)) or not len(holder):
        return value in holder
    first, *rest = holder
    return or_(value == first, *(functools.partial(operator.eq, value, item) for item in rest))


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
    truth = truth_of(test)
    return truth if isinstance(truth, bool) else False


def holds(test: Callable[[], Any]) -> Any:
    """Whether an assertion holds. A graph has no assertions: there it is taken for granted, and not looked at."""
    return True if torch.compiler.is_exporting() else test()


# Sizes after an `if` on a size: padding to a multiple, and taking it off again.
#
#     n = -length % 4
#     if n > 0:
#         x = functional.pad(x, (0, n))
#
# One side has length + n, the other length; but there n is zero, and length + n is right on both. Without this the size
# would be one that nothing is known of, and every later view a question without an answer.


def _sizes_after(test: Any, leaf: Leaf, left: Any, right: Any, known: set[Any]) -> list[Any] | None:
    """The sizes of what one of two branches gives, each as far as a formula is known for it; None if none is.

    Args:
        test: the condition.
        leaf: how the result is carried.
        left: what the first branch gave, which is taken if the test holds.
        right: what the second gave.
        known: the sizes there was a name for before the branches.
    """
    if leaf.kind != "tensor" or not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return None
    number, zero_first = _zero_on_one_side(test)
    sizes: list[Any] = []
    for a, b in zip(left.shape, right.shape, strict=True):
        formula, other = (b, a) if zero_first else (a, b)  # the first of the side on which the number is not zero
        found = None
        if not same(a, b) and not symbols_of(formula) - known:
            if number is not None:
                found = formula if _without(a, number) == _without(b, number) else _rounded_up(number, formula, other)
            if found is None and _of_sizes(test) and not symbols_of(other) - known:
                found = either_number(test, a, b)
        sizes.append(found)
    return sizes if any(size is not None for size in sizes) else None


# Whole numbers that a condition on sizes chooses:
#
#     if height <= window:
#         window = height
#
# What branches give is a number that nothing is known of. Torch can compute with a formula of sizes.


def _by_formula(test: Any, leaf: Leaf, first: Any, second: Any, known: set[Any]) -> Leaf:
    """A whole number after the branches as a formula of sizes, where both sides' are made of sizes."""
    if leaf.kind != "number" or leaf.dtype is not torch.int64 or not _of_sizes(test):
        return leaf
    if Unset in (type(first), type(second)) or (symbols_of(first) | symbols_of(second)) - known:
        return leaf
    extreme = _extreme(test, first, second)
    return Leaf("constant", either_number(test, first, second) if extreme is None else extreme)


def _extreme(test: Any, first: Any, second: Any) -> Any:
    """The minimum or maximum of two numbers, where that is what a condition chooses; else None."""
    asked = test.node.expr
    if not isinstance(asked, (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)):
        return None
    difference, tested = _formula(first) - _formula(second), asked.lhs - asked.rhs
    below = isinstance(asked, (sympy.Lt, sympy.Le))
    if sympy.expand(difference - tested) == 0:
        return (torch.sym_min if below else torch.sym_max)(first, second)
    if sympy.expand(difference + tested) == 0:
        return (torch.sym_max if below else torch.sym_min)(first, second)
    return None


# Tensors that are empty on one side, and of another rank there:
#
#     if boxes.shape[0] > 0:
#         boxes = boxes.reshape(boxes.shape[0], -1, 4)
#
# A graph's tensor has one rank. An empty tensor has no numbers that could be others, so it gets the other side's shape.

Shapes = dict[int, tuple[tuple[Any, ...], torch.dtype]]


def _empty_in_one(test: Any, left: Any, right: Any) -> tuple[Shapes, Shapes] | None:
    """For each side the results to replace by empty tensors: place, shape and type of each; None if there are none."""
    number, zero_first = _zero_on_one_side(test)
    (values, spec), (others, other_spec) = flatten(left), flatten(right)
    if number is None or spec != other_spec:
        return None
    empty, full = (values, others) if zero_first else (others, values)
    found: Shapes = {}
    for n, (a, b) in enumerate(zip(empty, full, strict=True)):
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype
        if tensors and a.dim() != b.dim():
            sizes = [_where_zero(size, number) for size in b.shape]
            if 0 in sizes and None not in sizes and 0 in [_where_zero(size, number) for size in a.shape]:
                found[n] = tuple(sizes), b.dtype
    if not found:
        return None
    return (found, {}) if zero_first else ({}, found)


def _where_zero(size: Any, number: Any) -> Any:
    """A size where the number is zero; None if it has no value there that is known outside."""
    formula = _without(size, number)
    if formula.is_Integer:
        return int(formula)
    return size if formula == _formula(size) else None


def _with_empty(side: Callable[..., Any], empty: Shapes) -> Callable[..., Any]:
    def run(*state: Any) -> Any:
        values, spec = flatten(side(*state))
        new = [torch.zeros(empty[n][0], dtype=empty[n][1]) if n in empty else v for n, v in enumerate(values)]
        return spec.unflatten(new)

    return run if empty else side


def _rounded_up(number: Any, padded: Any, plain: Any) -> Any:
    """``n`` up to the next multiple, where one side has ``n + 4 - n % 4`` and the other, with no rest, ``n``."""
    if type(number).__name__ not in ("Mod", "PythonMod") or not number.args[1].is_Integer:
        return None
    whole, step = number.args
    if step <= 0 or not isinstance(plain, torch.SymInt) or sympy.expand(_formula(plain) - whole) != 0:
        return None
    rest = sympy.expand(_formula(padded) - whole - step + number)
    return (plain + int(step) - 1) // int(step) * int(step) if rest == 0 else None


def _zero_on_one_side(test: Any) -> tuple[Any, bool]:
    """A number that is zero on one side of the test, and whether that is the first side; None if there is none."""
    if not isinstance(test, (torch.SymBool, torch.SymInt)):
        return None, False
    asked = test.node.expr
    if isinstance(test, torch.SymInt):
        return asked, False
    if not isinstance(asked, sympy.core.relational.Relational) or 0 not in asked.args:
        return None, False
    number = asked.rhs if asked.lhs == 0 else asked.lhs
    if isinstance(asked, (sympy.Ne, sympy.Eq)):
        return number, isinstance(asked, sympy.Eq)
    lower = fake_mode().shape_env.bound_sympy(number).lower
    above = sympy.Gt if asked.rhs == 0 else sympy.Lt  # number > 0, or 0 < number
    return (number, False) if lower >= 0 and isinstance(asked, above) else (None, False)


def _without(size: Any, number: Any) -> Any:
    """A size where the number is zero."""
    return sympy.expand(_formula(size).subs(number, 0))


def _formula(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
