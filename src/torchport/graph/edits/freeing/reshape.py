"""Reshape targets that were made for the old size of a dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import onnx_ir as ir

from torchport.graph.edits.freeing.facts import Fact, tensor_type
from torchport.graph.edits.freeing.places import Placement, placements
from torchport.graph.edits.freeing.walk import Walk

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
