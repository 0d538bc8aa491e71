"""What to do at each operator whose constants were made for the old size of a dimension.

onnx's inference takes most of these for what they say (a slice to 1 is a slice to 1), so each is looked at before.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from torchport.editing.make_dynamic.constants import grown
from torchport.editing.make_dynamic.propagation import Mender, Walk
from torchport.editing.make_dynamic.reshape_rules import flatten, reshape
from torchport.editing.make_dynamic.value_pair import Fact

_LAST = 2**63 - 1
Given = list[Fact | None]


# --- inputs that must agree -------------------------------------------------------------------------------------------


def _agree(walk: Walk, node: ir.Node, places: Sequence[tuple[int, int]], *, broadcasts: bool = False) -> None:
    """Axes of several inputs that are of one size: those without the dimension get it from the one that has it."""
    present = [(i, a) for i, a in places if i < len(node.inputs) and node.inputs[i] is not None]
    facts = {(i, a): walk.fact(node.inputs[i]) for i, a in present}  # type: ignore[arg-type]  # present ones
    source = next(((i, a) for (i, a), fact in facts.items() if a in fact.held), None)
    if source is None:
        return
    own = facts[source].was
    for (index, axis), fact in facts.items():
        if axis in fact.held or fact.was is None or own is None or axis >= len(fact.was):
            continue
        value, origin = node.inputs[index], node.inputs[source[0]]
        assert value is not None
        assert origin is not None
        if fact.was[axis] in (own[source[1]], 1) and not (broadcasts and fact.was[axis] == 1):
            _grow(walk, node, index, axis, (origin, source[1]), broadcasts)


def _grow(walk: Walk, node: ir.Node, index: int, axis: int, source: tuple[ir.Value, int], broadcasts: bool) -> None:
    value = node.inputs[index]
    assert value is not None
    if not walk.mending:
        raise walk.refusal(node, f"'{value.name}' has the old size")
    walk.give(node, index, grown(walk, node, value, axis, source, broadcasts=broadcasts))


def _broadcast(walk: Walk, node: ir.Node, given: Given, inputs: Sequence[int] | None = None, skip: int = 0) -> None:
    ranks = {n: len(f.was) for n, f in enumerate(given) if f is not None and f.was is not None}
    ranks = {n: rank for n, rank in ranks.items() if inputs is None or n in inputs}
    for back in range(1 + skip, max(ranks.values(), default=0) + 1):
        _agree(walk, node, [(n, rank - back) for n, rank in ranks.items() if rank >= back], broadcasts=True)


def _matmul(walk: Walk, node: ir.Node, given: Given) -> None:
    _broadcast(walk, node, given, inputs=(0, 1), skip=2)


def _gemm(walk: Walk, node: ir.Node, given: Given) -> None:
    a, c = given[0], given[2] if len(given) > 2 else None
    if a is None or c is None or not c.was or len(c.was) < 2:
        return
    rows = 1 if walk.attribute(node, "transA", 0) else 0
    _agree(walk, node, [(0, rows), (2, 0)], broadcasts=True)


def _concat(walk: Walk, node: ir.Node, given: Given) -> None:
    rank = len(next(f.was for f in given if f is not None and f.was is not None))
    along = walk.attribute(node, "axis", 0) % rank
    for axis in range(rank):
        if axis != along:
            _agree(walk, node, [(n, axis) for n in range(len(given))])


def _elements(walk: Walk, node: ir.Node, given: Given) -> None:
    first = given[0]
    rank = len(first.was or ()) if first is not None else 0
    along = walk.attribute(node, "axis", 0) % max(rank, 1)
    for axis in range(rank):
        if axis != along:
            _agree(walk, node, [(n, axis) for n in range(len(given))])


def _recurrent(walk: Walk, node: ir.Node, given: Given) -> None:
    axis = 0 if walk.attribute(node, "layout", 0) else 1
    _agree(walk, node, [(0, axis), (4, 0), (5, axis), (6, axis)])


def _first_axes(*inputs: int) -> Mender:
    def mender(walk: Walk, node: ir.Node, given: Given) -> None:
        _agree(walk, node, [(n, 0) for n in inputs])

    return mender


def _einsum(walk: Walk, node: ir.Node, given: Given) -> None:
    text = walk.attribute(node, "equation", "")
    text = (text.decode() if isinstance(text, bytes) else text).replace(" ", "").split("->")[0]
    if "." in text:
        return
    terms = text.split(",")
    for letter in sorted(set(text) - {","}):
        _agree(walk, node, [(n, term.index(letter)) for n, term in enumerate(terms) if letter in term])


def _expand(walk: Walk, node: ir.Node, given: Given) -> None:
    """An entry of the target that says the old size where the input has the new one becomes 1: the input decides."""
    x, target = given[0], given[1]
    if x is None or target is None or x.was is None or target.new_data is None:
        return
    entries = [int(n) for n in target.new_data.tolist()]
    shift = len(entries) - len(x.was)
    wrong = [a + shift for a in x.held if a + shift >= 0 and entries[a + shift] not in (1, (x.now or ())[a])]
    if wrong:
        _check_mending(walk, node)
        walk.give(node, 1, _patched(walk, node, 1, target, {n: walk.constant(node, [1]) for n in wrong}))


def _patched(walk: Walk, node: ir.Node, index: int, vector: Fact, patches: dict[int, ir.Value]) -> ir.Value:
    """An input that is a vector of sizes, with other numbers at some places."""
    value, known = node.inputs[index], vector.constant
    assert value is not None
    parts: list[ir.Value] = []
    for n in range(0 if vector.old_data is None else vector.old_data.size):
        if n in patches:
            parts.append(patches[n])
        elif known is not None:
            parts.append(walk.constant(node, [int(known[n])]))
        else:
            parts.append(walk.make(node, "Gather", [value, walk.constant(node, [n])], axis=0))
    return walk.make(node, "Concat", parts, axis=0) if len(parts) > 1 else parts[0]


# --- parts of the dimension -------------------------------------------------------------------------------------------


def _slice(walk: Walk, node: ir.Node, given: Given) -> None:
    """A slice that took everything takes everything again."""
    x = given[0]
    data = [None if f is None else f.constant for f in given[1:]]
    if x is None or x.was is None or len(data) < 2 or data[0] is None or data[1] is None:
        return
    starts, ends = data[0].reshape(-1).tolist(), data[1].reshape(-1).tolist()
    axes = data[2].reshape(-1).tolist() if len(data) > 2 and data[2] is not None else list(range(len(starts)))
    steps = data[3].reshape(-1).tolist() if len(data) > 3 and data[3] is not None else [1] * len(starts)
    new = list(ends)
    for n, axis in enumerate(a % len(x.was) for a in axes):
        size = x.was[axis]
        if axis in x.held and size is not None and steps[n] > 0 and size <= ends[n] < 2**31 - 1:
            new[n] = _LAST
    if new != ends:
        _check_mending(walk, node)
        kind = data[1].dtype
        last = np.array([min(n, np.iinfo(kind).max) for n in new], dtype=kind)
        walk.give(node, 2, walk.make(node, "Constant", [], value=ir.tensor(last)))


def _gather(walk: Walk, node: ir.Node, given: Given) -> None:
    x, index = given[0], given[1]
    if x is None or x.was is None or index is None or not x.held:
        return
    axis = walk.attribute(node, "axis", 0) % len(x.was)
    size = x.was[axis]
    if axis not in x.held or index.constant is None or size is None:
        return
    if size == 1 or int(index.constant.max(initial=0)) == size - 1:
        raise walk.refusal(node, f"it takes {index.constant.tolist()} of this dimension, which held {size}")


def _pointed(walk: Walk, node: ir.Node, given: Given) -> None:
    """GatherND and ScatterND: positions in the dimension are numbers that were made for the old size."""
    data, index = given[0], given[1]
    if data is None or index is None or not index.was or data.was is None:
        return
    begin = int(walk.attribute(node, "batch_dims", 0))
    depth = index.was[-1] or 0
    for axis in range(begin):
        _agree(walk, node, [(0, axis), (1, axis)])
    if any(begin <= axis < begin + depth for axis in data.held):
        raise walk.refusal(node, "it points into this dimension by numbers made for the old size")
    if node.op_type == "ScatterND":
        for n in range(len(data.was) - depth):
            _agree(walk, node, [(0, depth + n), (2, len(index.was) - 1 + n)])


def _split(walk: Walk, node: ir.Node, given: Given) -> None:
    x = given[0]
    if x is None or x.was is None:
        return
    axis = walk.attribute(node, "axis", 0) % len(x.was)
    if axis not in x.held:
        return
    parts = given[1].constant if len(given) > 1 and given[1] is not None else walk.attribute(node, "split", None)
    if parts is None and x.was[axis] != walk.probe.was:
        return
    sizes = [int(n) for n in parts] if parts is not None else []
    if not sizes or len(set(sizes)) > 1 or x.was[axis] == walk.probe.was:
        raise walk.refusal(node, f"it splits this dimension into {sizes or 'parts'}")
    _check_mending(walk, node)
    node.attributes.pop("split", None)
    if len(node.inputs) > 1:
        walk.give(node, 1, None)
        node.resize_inputs(1)
    if walk.opset >= 18:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(sizes))


def _squeeze(walk: Walk, node: ir.Node, given: Given) -> None:
    x = given[0]
    if x is None or x.was is None:
        return
    data = given[1].old_data if len(given) > 1 and given[1] is not None else None
    axes = data.reshape(-1).tolist() if data is not None else walk.attribute(node, "axes", None)
    taken = {a % len(x.was) for a in axes} if axes is not None else {n for n, d in enumerate(x.was) if d == 1}
    if taken & set(x.held):
        raise walk.refusal(node, "it takes this dimension, which was 1, out of the shape")


def _resize(walk: Walk, node: ir.Node, given: Given) -> None:
    """Sizes that were the input's stay the input's; those that were a multiple or a part of it stay that."""
    x, sizes = given[0], given[3] if len(given) > 3 else None
    if x is None or sizes is None or not x.held or x.was is None or sizes.old_data is None or sizes.new_data is None:
        return
    axes = walk.attribute(node, "axes", None) or list(range(len(x.was)))
    held = [n for n, axis in enumerate(axes) if axis % len(x.was) in x.held]
    fixed = [n for n in held if sizes.old_data[n] == sizes.new_data[n]]
    if not fixed:
        return
    _check_mending(walk, node)
    patches = {n: _resized(walk, node, x, axes[n] % len(x.was), int(sizes.old_data[n])) for n in fixed}
    walk.give(node, 3, _patched(walk, node, 3, sizes, patches))


def _resized(walk: Walk, node: ir.Node, x: Fact, axis: int, end: int) -> ir.Value:
    size, value = (x.was or ())[axis], node.inputs[0]
    factor = Fraction(end, size or 1)
    if value is None or 1 not in (factor.numerator, factor.denominator):
        raise walk.refusal(node, f"it resizes this dimension from {size} to {end}, which is no multiple of it")
    return walk.size(node, value, [axis], factor)


def _check_mending(walk: Walk, node: ir.Node) -> None:
    if not walk.mending:
        raise walk.refusal(node, "its constants are made for the old size")


_WIDE = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Mod", "Where", "And", "Or", "Xor", "PRelu"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitShift"),
)

MENDERS: dict[str, Mender] = {
    "Reshape": reshape,
    "Flatten": flatten,
    **dict.fromkeys(_WIDE, _broadcast),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    "Gemm": _gemm,
    "Concat": _concat,
    **dict.fromkeys(("GatherElements", "ScatterElements"), _elements),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("GridSample", "MaxUnpool"), _first_axes(0, 1)),
    "Attention": _first_axes(0, 1, 2, 4, 5),
    "DeformConv": _first_axes(0, 2, 4),
    "Einsum": _einsum,
    "Expand": _expand,
    "Slice": _slice,
    "Gather": _gather,
    **dict.fromkeys(("GatherND", "ScatterND"), _pointed),
    "Split": _split,
    "Squeeze": _squeeze,
    "Resize": _resize,
}
