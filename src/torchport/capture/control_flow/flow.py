"""Control flow by name: the functions that rewritten code calls in the place of `if`, `while` and `for`, and those that
are called in the place of torch.cond, torch.switch, while_loop, scan, map and associative_scan (at the end)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport.capture.control_flow.branches import (
    and_,
    compare,
    cond,
    for_loop,
    holds,
    never,
    not_,
    or_,
    truth_of,
    while_loop,
)
from torchport.capture.control_flow.conversions import (
    all_,
    any_,
    bool_,
    bound,
    ceil_,
    collect,
    divmod_,
    enumerate_,
    float_,
    floor_,
    int_,
    item_,
    len_,
    list_,
    max_,
    min_,
    range_,
    reversed_,
    round_,
    sqrt_,
    sum_,
    tolist_,
    trunc_,
    zip_,
)
from torchport.capture.control_flow.indexing import at, getattr_, part, slice_, str_, text_
from torchport.capture.control_flow.loops import Loop
from torchport.capture.control_flow.merging import UNSET
from torchport.capture.control_flow.tracing import rehearse, sizes_in
from torchport.capture.guards import note_settled
from torchport.torch_compat.tracing import tree_flatten, tree_leaves, tree_unflatten

__all__ = [
    "UNSET",
    "all_",
    "and_",
    "any_",
    "at",
    "bool_",
    "bound",
    "ceil_",
    "collect",
    "compare",
    "cond",
    "divmod_",
    "enumerate_",
    "float_",
    "floor_",
    "for_loop",
    "getattr_",
    "holds",
    "int_",
    "item_",
    "len_",
    "list_",
    "max_",
    "min_",
    "never",
    "not_",
    "or_",
    "part",
    "range_",
    "reversed_",
    "round_",
    "slice_",
    "sqrt_",
    "str_",
    "sum_",
    "text_",
    "tolist_",
    "trunc_",
    "while_loop",
    "zip_",
]


# Control flow that users wrote with torch's own operators.
#
# Outside of a capture these functions do what torch's documentation says the operators do, in plain Python. Under
# torch.export they are the choice and the loop that rewritten code becomes: closures, parameters and sizes come in as
# inputs, every result is a copy, so it may be an input or a view, and a body may write to what it is given.
#
# The arguments are those of torch.ops.higher_order. torch takes structures apart before it calls an operator, but the
# user's functions give structures, and torch expects them put together again.


def _cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = (), *, nested: bool
) -> Any:
    note_settled(pred)
    return cond(pred, true_fn, false_fn, *operands)


def _switch(
    index: Any, branches: Sequence[Callable[..., Any]], operands: Sequence[Any] = (), *, nested: bool = True
) -> Any:
    first, *others = branches
    if not others:
        return first(*operands)
    return cond(index == 0, first, lambda *given: _switch(index - 1, others, given), *operands)


def _while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **_: Any,
) -> Any:
    """Also for the operator itself; its further arguments say what the body writes to, which a rehearsal finds out."""
    if not torch.compiler.is_exporting():
        return _run_while(cond_fn, body_fn, carried_inputs, additional_inputs)
    form = _form_of(body_fn, *carried_inputs, *additional_inputs)

    def round_(_: torch.Tensor, *now: Any) -> Any:
        new = tree_leaves(body_fn(*now, *additional_inputs))
        return (truth_of(not_(cond_fn(*new, *additional_inputs))), *new)

    start = truth_of(cond_fn(*carried_inputs, *additional_inputs))
    if start is False:
        return tree_unflatten(carried_inputs, form)
    start = torch.ones((), dtype=torch.bool) if start is True else start
    sizes = sizes_in(cond_fn, body_fn, carried_inputs, additional_inputs)
    return tree_unflatten(Loop(round_, None, start, _numbered(carried_inputs), sizes).run(tuple(carried_inputs)), form)


def _run_while(cond_fn: Any, body_fn: Any, carried: Sequence[Any], additional: Sequence[Any]) -> Any:
    result: Any = None
    while cond_fn(*carried, *additional):
        result = body_fn(*carried, *additional)
        carried = tree_leaves(result)
    return tuple(carried) if result is None else result


def _form_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the structure of what a function gives."""
    return tree_flatten(rehearse(function, *arguments).result)[1]


def _numbered(values: Sequence[Any]) -> list[str]:
    return [f"carried value {number}" for number in range(len(values))]


def _scan(
    combine_fn: Callable[..., Any],
    init: Sequence[Any],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
    *,
    nested: bool,
) -> Any:
    def step(carried: Sequence[Any], items: Sequence[torch.Tensor]) -> Any:
        combined = combine_fn(*carried, *items, *additional_inputs)
        return combined if nested else (list(combined[: len(init)]), list(combined[len(init) :]))

    last, rows = _stepped(step, init, xs, additional_inputs)
    return (last, rows) if nested else [*last, *rows]


def _map(f: Callable[..., Any], xs: Sequence[torch.Tensor], pos_args: Sequence[Any] = (), *, nested: bool) -> Any:
    return _stepped(lambda _, items: ((), f(*items, *pos_args)), (), xs, pos_args)[1]


def _stepped(step: Callable[..., Any], init: Sequence[Any], xs: Sequence[torch.Tensor], sizes: Any) -> tuple[Any, Any]:
    """Run ``step(carried, items) -> (carried, row)`` along the first axis of `xs`; return the last and all rows."""
    if not torch.compiler.is_exporting():
        return _run_steps(step, list(init), xs)
    sample = rehearse(lambda: step(list(init), _items_like(xs))).result
    (_, form), (leaves, form_of_rows) = [tree_flatten(part) for part in sample]

    def round_(number: torch.Tensor, *now: Any) -> Any:
        items = [x.index_select(0, number.reshape(1)).squeeze(0) for x in xs]
        carry, row = step(list(now[: len(init)]), items)
        lists = now[len(init) :]
        for rows, leaf in zip(lists, _tensors(tree_leaves(row)), strict=True):
            rows.append(leaf)
        return (False, *tree_leaves(carry), *lists)

    start = torch.ones((), dtype=torch.bool)
    loop = Loop(round_, xs[0].shape[0], start, _numbered(init), sizes_in(step, init, sizes))
    ended = loop.run((*init, *([] for _ in _tensors(leaves))))
    rows = [rows.tensor() for rows in ended[len(init) :]]
    return tree_unflatten(ended[: len(init)], form), tree_unflatten(_in_place(rows, leaves), form_of_rows)


def _run_steps(step: Callable[..., Any], carried: list[Any], xs: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    """The same in plain Python."""
    columns: list[list[torch.Tensor]] = []
    for items in zip(*xs, strict=True):
        carry, row = step(carried, items)
        carried, form = tree_flatten(carry)
        leaves, form_of_rows = tree_flatten(row)
        columns.append([leaf.clone() for leaf in _tensors(leaves)])
    if not columns:
        carry, row = step([value.clone() for value in carried], _items_like(xs))
        form, (leaves, form_of_rows) = tree_flatten(carry)[1], tree_flatten(row)
        rows = [torch.empty((0, *leaf.shape), dtype=leaf.dtype) for leaf in _tensors(leaves)]
    else:
        rows = [torch.stack(column) for column in zip(*columns, strict=True)]
    return tree_unflatten(carried, form), tree_unflatten(_in_place(rows, leaves), form_of_rows)


def _items_like(xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.new_zeros(x.shape[1:]) for x in xs]


def _tensors(leaves: Sequence[Any]) -> list[Any]:
    """A row may have None in it, which stays what it is."""
    return [leaf for leaf in leaves if leaf is not None]


def _in_place(rows: Sequence[torch.Tensor], leaves: Sequence[Any]) -> list[Any]:
    left = iter(rows)
    return [None if leaf is None else next(left) for leaf in leaves]


# associative_scan, whose length torch's own steps are unrolled for.
#
# Each round combines every item with the one at twice the distance before it, until the distance is the length: as many
# rounds as the length has binary digits.


def _associative(own: Callable[..., Any]) -> Callable[..., Any]:
    def scan(operator: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
        if not torch.compiler.is_exporting():
            return own(operator, leaves, dim, additional_inputs)
        return list(_doubled(operator, leaves, dim, additional_inputs))

    return scan


def _doubled(operator: Callable[..., Any], leaves: Sequence[torch.Tensor], dim: int, additional: Sequence[Any]) -> Any:
    length = leaves[0].shape[dim]
    places = torch.arange(length)

    def round_(distance: Any, *now: torch.Tensor) -> tuple[Any, ...]:
        before = places - distance
        earlier = [leaf.index_select(dim, before.clamp(min=0)) for leaf in now]
        combined = tree_leaves(operator(*earlier, *now, *additional))
        there = [(before >= 0).reshape([-1 if axis == dim else 1 for axis in range(leaf.dim())]) for leaf in now]
        return (distance * 2, *map(torch.where, there, combined, now))

    if not isinstance(length, int):
        start = (torch.ones((), dtype=torch.int64), *leaves)
        return _while_loop(lambda distance, *_: distance < length, round_, start)[1:]
    state: tuple[Any, ...] = (1, *leaves)
    while state[0] < length:
        state = round_(*state)
    return state[1:]


TORCH_OPERATORS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "switch": _switch,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "generic_associative_scan": _associative,
}
