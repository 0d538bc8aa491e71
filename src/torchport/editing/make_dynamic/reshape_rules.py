"""Shapes that a Reshape is given, made to follow a dimension."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import onnx_ir as ir

from torchport.editing.make_dynamic.propagation import Walk
from torchport.editing.make_dynamic.value_pair import Fact, tensor_type

Given = list[Fact | None]


def reshape(walk: Walk, node: ir.Node, given: Given) -> None:
    x, target = given[0], given[1]
    if x is None or target is None or not x.held or target.old_data is None or target.new_data is None:
        return
    was, now, zero = _numbers(x.was), _numbers(x.now), bool(walk.attribute(node, "allowzero", 0))
    if was is None or now is None:
        return
    out = _resolved(target.old_data.tolist(), was, zero)
    if out is None:
        raise walk.refusal(node, f"its target {target.old_data.tolist()} does not fit its input {was}")
    natural = _resolved(target.new_data.tolist(), now, zero)
    ways = placements(was, now, [x.inner_of(n) for n in range(len(was))], out, walk.probe.was)
    way = _way(walk, node, ways, natural, fixed=not target.changed)
    if way.now != natural:
        walk.give(node, 1, _target(walk, node, target, out, way, zero))
    element = x.old.tensor_type.elem_type
    walk.facts[node.outputs[0]] = Fact(tensor_type(element, out), tensor_type(element, way.now), inner=way.inner)


def _way(
    walk: Walk, node: ir.Node, ways: list[Placement], natural: tuple[int, ...] | None, *, fixed: bool
) -> Placement:
    same = [way for way in ways if way.now == natural]
    if natural is not None and (not walk.mending or not fixed):
        return same[0] if same else Placement(natural, (1,) * len(natural), {})
    if not ways or not walk.mending:
        raise walk.refusal(node, "its target is constant, and the dimension is folded with others in it")
    assert walk.picks is not None
    return ways[walk.picks.pick(len(ways))]


def _target(walk: Walk, node: ir.Node, target: Fact, out: tuple[int, ...], way: Placement, zero: bool) -> ir.Value:
    """A new target: copied sizes as 0, one other as -1, or else computed from the input's shape."""
    given = target.constant
    entries: list[int | None] = [None] * len(out) if given is None else [int(n) for n in given.tolist()]
    for axis in way.sources:
        entries[axis] = 0 if not zero and way.sources[axis] == ((axis,), Fraction(1)) else None
    open_axes = [axis for axis in way.sources if entries[axis] is None]
    if given is not None and not walk.probe.others:
        entries = [out[axis] if entry == -1 and open_axes else entry for axis, entry in enumerate(entries)]
    taken = target.new_data.tolist() if given is None and target.new_data is not None else entries
    if len(open_axes) == 1 and -1 not in taken and not (zero and 0 in taken):
        entries[open_axes[0]] = -1
    if None not in entries:
        return walk.constant(node, entries)
    parts = [_entry(walk, node, axis, entry, way) for axis, entry in enumerate(entries)]
    return walk.make(node, "Concat", parts, axis=0)


def _entry(walk: Walk, node: ir.Node, axis: int, entry: int | None, way: Placement) -> ir.Value:
    """One number of a target: known, or the input's sizes, or what the old target says there."""
    x, target = node.inputs[0], node.inputs[1]
    assert x is not None
    assert target is not None
    if entry is not None:
        return walk.constant(node, [entry])
    if axis not in way.sources:
        return walk.make(node, "Gather", [target, walk.constant(node, [axis])], axis=0)
    ins, factor = way.sources[axis]
    if walk.probe.others and factor != 1:
        raise walk.refusal(node, "the dimension is folded with others that are dynamic themselves")
    return walk.size(node, x, ins, factor)


def _resolved(target: Sequence[int], shape: Sequence[int], zero: bool) -> tuple[int, ...] | None:
    """The shape a target stands for; None where the elements do not fit in."""
    if any(n == 0 and not zero and axis >= len(shape) for axis, n in enumerate(target)):
        return None
    sizes = [shape[axis] if n == 0 and not zero else n for axis, n in enumerate(target)]
    known, total = math.prod(n for n in sizes if n != -1), math.prod(shape)
    if -1 in sizes:
        if known == 0 or total % known:
            return None
        sizes[sizes.index(-1)] = total // known
    return tuple(sizes) if math.prod(sizes) == total else None


def _numbers(dims: Sequence[int | None] | None) -> tuple[int, ...] | None:
    found = tuple(d for d in dims or () if d is not None)
    return found if dims is not None and len(found) == len(dims) else None


def flatten(walk: Walk, node: ir.Node, given: Given) -> None:
    x = given[0]
    was, now = (None, None) if x is None else (_numbers(x.was), _numbers(x.now))
    if x is None or was is None or now is None:
        return
    axis = walk.attribute(node, "axis", 1)
    axis += len(was) if axis < 0 else 0
    out, natural = ((math.prod(s[:axis]), math.prod(s[axis:])) for s in (was, now))
    ways = placements(was, now, [x.inner_of(n) for n in range(len(was))], out, walk.probe.was)
    inner = next((way.inner for way in ways if way.now == natural), (1, 1))
    element = x.old.tensor_type.elem_type
    walk.facts[node.outputs[0]] = Fact(tensor_type(element, out), tensor_type(element, natural), inner=inner)


# Where a dimension goes in a reshape.
#
# A reshape keeps the elements in row-major order, so a dimension is known by its stride: by how many elements lie
# inside it. The axis of the result that has room for it at that stride holds it, alone or folded with its neighbors:
#
#     [1, 196, 768] -> [1, 196, 12, 64]     axis 0, alone
#     [1, 12, 197, 64] -> [12, 197, 64]     axis 0, folded with 12 that lie inside it

_MOST = 8  # ways to read one reshape


@dataclasses.dataclass(frozen=True)
class Placement:
    """One way to read a reshape.

    Attributes:
        now: the shape of the result.
        inner: for each of its axes, how many elements lie inside the dimension where it is folded with others.
        sources: for an axis that holds it, the axes of the input whose product gives its size, and times what.
    """

    now: tuple[int, ...]
    inner: tuple[int, ...]
    sources: dict[int, tuple[tuple[int, ...], Fraction]]


def placements(
    was: Sequence[int], now: Sequence[int], inner: Sequence[int], out: Sequence[int], size: int
) -> list[Placement]:
    """The ways in which a reshape to `out` carries the dimension, the likeliest first; none where there is none.

    Args:
        was: the input's shape at the old size.
        now: the same at the new size.
        inner: of each axis of the input, the elements inside the dimension.
        out: the result's shape at the old size.
        size: the old size of the dimension.
    """
    axes = [axis for axis, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
    groups = list(_groups(was, out))
    ways = [_ways(axis, was, inner, out, size, groups) for axis in axes]
    found = (_placed(axes, way, was, now, out) for way in itertools.islice(itertools.product(*ways), _MOST))
    return [placement for placement in found if placement is not None]


_Way = tuple[int, int, tuple[int, ...]]  # the result's axis, elements inside, axes of the input that make it up


def _ways(
    axis: int,
    was: Sequence[int],
    inner: Sequence[int],
    out: Sequence[int],
    size: int,
    groups: list[tuple[list[int], list[int]]],
) -> list[_Way]:
    joined = _joined(axis, was, inner, groups)
    stride = inner[axis] * math.prod(was[axis + 1 :])
    own = size if was[axis] % (size * inner[axis]) == 0 else was[axis] // inner[axis]
    whole = {outs[0] for _, outs in groups if len(outs) == 1}  # not split: heads are split off behind a batch
    found = [(o, stride // _after(out, o)) for o in range(len(out)) if _has_room(out, o, stride, own)]
    alone = {o for o, within in found if within == 1 and out[o] == own}
    found.sort(key=lambda way: (way[0] not in alone, way[0] in alone and way[0] != axis, way[0] in whole, way[0]))
    if joined and was[axis] == own:
        return joined
    split: list[_Way] = [(o, within, (axis,)) for o, within in found]
    if own == 1:  # between two axes it may be of either; the outer one leaves the inner one what it was
        split.sort(key=lambda way: (way[0] not in alone, was[axis] > 1 and way[1] > 1))
        return split + [way for way in joined if way[:2] not in {w[:2] for w in split}]
    return split if alone or not joined else joined


def _joined(
    axis: int, was: Sequence[int], inner: Sequence[int], groups: list[tuple[list[int], list[int]]]
) -> list[_Way]:
    """The way of an axis that becomes one with its neighbors, or stays what it is."""
    for ins, outs in groups:
        if axis in ins and len(outs) == 1:
            after = math.prod(was[i] for i in ins if i > axis)
            return [(outs[0], inner[axis] * after, tuple(ins))]
    return []


def _after(shape: Sequence[int], axis: int) -> int:
    return math.prod(shape[axis + 1 :])


def _has_room(out: Sequence[int], axis: int, stride: int, size: int) -> bool:
    after = _after(out, axis)
    return after > 0 and stride % after == 0 and stride >= after and out[axis] % (stride // after * size) == 0


def _placed(
    axes: Sequence[int], ways: Sequence[_Way], was: Sequence[int], now: Sequence[int], out: Sequence[int]
) -> Placement | None:
    result, within = list(out), [1] * len(out)
    sources: dict[int, tuple[tuple[int, ...], Fraction]] = {}
    for axis, (to, inside, ins) in zip(axes, ways, strict=True):
        factor = Fraction(out[to], math.prod(was[i] for i in ins))
        grown = factor * math.prod(now[i] for i in ins)
        if (to in sources and sources[to] != (ins, factor)) or grown.denominator != 1:
            return None
        result[to], within[to], sources[to] = int(grown), inside, (ins, factor)
        if len(ins) == 1 and now[axis] % was[axis] and factor != 1:
            return None  # not a multiple: it cannot be folded with others
    return Placement(tuple(result), tuple(within), sources)


def _groups(was: Sequence[int], out: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of axes of both that hold the same elements, axes of one left out."""
    left = [axis for axis, size in enumerate(was) if size != 1]
    right = [axis for axis, size in enumerate(out) if size != 1]
    ins: list[int] = []
    outs: list[int] = []
    while left or right:
        a, b = math.prod(was[i] for i in ins), math.prod(out[i] for i in outs)
        if (a <= b and left) or not right:
            ins.append(left.pop(0))
        else:
            outs.append(right.pop(0))
        if math.prod(was[i] for i in ins) == math.prod(out[i] for i in outs):
            yield ins, outs
            ins, outs = [], []
