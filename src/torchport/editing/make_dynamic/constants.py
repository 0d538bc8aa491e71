"""Gives a value that was made for the old size of a dimension its new size.

A value that does not come from the input which got the dimension is a constant in disguise: the initial state of an
LSTM, a class token, a table of positions. What to do follows from what it is: rows that are all alike are repeated,
numbers that count on are counted on, a slice of something longer gets a new end. Anything else is refused.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.editing.make_dynamic.propagation import Walk
from torchport.errors import InputError
from torchport.irtools.node_reader import constant
from torchport.tensors import Array

Source = tuple[ir.Value, int]  # a value and the axis of it whose size is to be had

_POINTWISE = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "Where", "And", "Or", "Xor", "Not", "Equal", "Less"),
    *("LessOrEqual", "Greater", "GreaterOrEqual", "Cast", "Identity", "Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Exp"),
    *("Log", "Sqrt", "Sin", "Cos", "Reciprocal", "Clip", "Floor", "Ceil", "Round", "Sum", "Erf", "CastLike", "Sign"),
)


def grown(
    walk: Walk, node: ir.Node, value: ir.Value, axis: int, source: Source, *, broadcasts: bool = False
) -> ir.Value:
    """A value like `value`, its axis of the size that `source` has; made in front of `node`.

    Args:
        walk: what is known.
        node: who needs it, named where it is refused.
        value: what has the old size; it stays as it is for others.
        axis: which of its axes.
        source: where the size comes from.
        broadcasts: a size of one does as well.
    """
    was = walk.fact(value).was
    assert was is not None
    _check_is_no_input(walk, value, axis)
    if was[axis] == 1:
        return value if broadcasts else _expanded(walk, node, value, axis, source)
    if _alike(walk, value, axis):
        first = [walk.constant(node, [n]) for n in (0, 1, axis)]
        row = walk.make(node, "Slice", [value, *first])
        return row if broadcasts else _expanded(walk, node, row, axis, source)
    found = _counted(walk, node, value, axis, source)
    found = found if found is not None else _remade(walk, node, value, axis, source)
    if found is None:
        size = walk.fact(source[0]).was
        raise walk.refusal(
            node, f"'{value.name}' is made for size {size[source[1]] if size else '?'}, and its rows are not alike"
        )
    return found


def _check_is_no_input(walk: Walk, value: ir.Value, axis: int) -> None:
    if not (value.is_graph_input() and value.graph is walk.model.graph):
        return
    places = ",".join(f"{name}:{at}" for name, at in (*walk.probe.places, (str(value.name), axis)))
    raise InputError(
        f"axis {axis} of input '{value.name}' must be of the same size as '{walk.probe.name}'",
        next_step=f"give them together: {places}={walk.probe.name}",
    )


def _expanded(walk: Walk, node: ir.Node, value: ir.Value, axis: int, source: Source) -> ir.Value:
    rank = len(walk.fact(value).was or ())
    size = walk.size(node, source[0], [source[1]])
    around = [walk.constant(node, [1] * n) if n else None for n in (axis, rank - axis - 1)]
    parts = [p for p in (around[0], size, around[1]) if p is not None]
    shape = walk.make(node, "Concat", parts, axis=0) if len(parts) > 1 else size
    return walk.make(node, "Expand", [value, shape])


# --- rows that are alike ----------------------------------------------------------------------------------------------


def _alike(walk: Walk, value: ir.Value, axis: int) -> bool:
    """Whether every row along an axis is sure to be the same."""
    data = _numbers(walk, value)
    if data is not None:
        first = data.take([0], axis)
        return bool(np.all((data == first) | ((data != data) & (first != first))))
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type == "ConstantOfShape":
        return True
    rank = len(walk.fact(value).was or ())
    if node.op_type in ("Expand", "Tile"):
        return _row_of_input(walk, node.inputs[0], axis, rank)
    if node.op_type == "Transpose":
        order = walk.attribute(node, "perm", list(range(rank))[::-1])
        return _row_of_input(walk, node.inputs[0], order[axis], rank)
    if node.op_type == "Concat":
        inner = walk.attribute(node, "axis", 0) % rank
        return inner != axis and all(_row_of_input(walk, v, axis, rank) for v in node.inputs)
    return node.op_type in _POINTWISE and all(_row_of_input(walk, v, axis, rank) for v in node.inputs if v is not None)


def _row_of_input(walk: Walk, value: ir.Value | None, axis: int, rank: int) -> bool:
    """The same for an input that is broadcast to `rank`."""
    was = None if value is None else walk.fact(value).was
    if value is None or was is None:
        return False
    own = axis - (rank - len(was))
    return own < 0 or was[own] == 1 or _alike(walk, value, own)


def _numbers(walk: Walk, value: ir.Value) -> Array | None:
    """The numbers of a constant; a weight is read only here, where its rows must be compared."""
    fact = walk.fact(value)
    if fact.constant is not None:
        return fact.constant
    if fact.old_data is not None:
        return None
    return constant(value)


# --- numbers that count on, and what is made of them ------------------------------------------------------------------


def _counted(walk: Walk, node: ir.Node, value: ir.Value, axis: int, source: Source) -> ir.Value | None:
    """``[3, 4, 5]`` becomes ``Range(3, 3 + size)``."""
    data = _numbers(walk, value)
    if data is None or data.dtype not in (np.int64, np.int32) or data.size != data.shape[axis]:
        return None
    start, line = int(data.reshape(-1)[0]), data.reshape(-1)
    if not np.array_equal(line, np.arange(start, start + line.size)) or walk.opset < 13:
        return None
    size = walk.make(node, "Squeeze", [walk.size(node, source[0], [source[1]]), walk.constant(node, [0])])
    first = walk.constant(node, start)
    end = walk.make(node, "Add", [size, first]) if start else size
    found = walk.make(node, "Range", [first, end, walk.constant(node, 1)])
    if data.dtype == np.int32:
        found = walk.make(node, "Cast", [found], to=int(ir.DataType.INT32))
    around = [n for n in range(data.ndim) if n != axis]
    return walk.make(node, "Unsqueeze", [found, walk.constant(node, around)]) if around else found


def _remade(walk: Walk, node: ir.Node, value: ir.Value, axis: int, source: Source) -> ir.Value | None:
    """The node that made it once more, from inputs of the new size."""
    maker = value.producer()
    if maker is None or maker.domain != "" or len(maker.outputs) != 1 or maker.graph is not node.graph:
        return None
    if maker.op_type == "Slice":
        return _sliced_on(walk, node, maker, axis, source)
    places = _places_in(walk, maker, axis)
    if places is None:
        return None
    inputs = list(maker.inputs)
    for index, own in places:
        given = inputs[index]
        assert given is not None
        inputs[index] = grown(walk, node, given, own, source, broadcasts=False)
    return walk.make(node, maker.op_type, inputs, **{a.name: a.value for a in maker.attributes.values()})


def _places_in(walk: Walk, maker: ir.Node, axis: int) -> list[tuple[int, int]] | None:
    """The inputs, and the axes of them, that make up an axis of what a node gives."""
    rank = len(walk.fact(maker.outputs[0]).was or ())
    if maker.op_type in _POINTWISE:
        shapes = [(n, walk.fact(v).was) for n, v in enumerate(maker.inputs) if v is not None]
        own = [(n, axis - rank + len(s), s) for n, s in shapes if s is not None]
        return [(n, at) for n, at, s in own if at >= 0 and s[at] != 1]
    if maker.op_type == "Gather" and maker.inputs[1] is not None:
        start = walk.attribute(maker, "axis", 0)
        count = len(walk.fact(maker.inputs[1]).was or ())
        return [(1, axis - start)] if 0 <= start <= axis < start + count else None
    if maker.op_type == "Unsqueeze" and len(maker.inputs) > 1 and maker.inputs[1] is not None:
        data = walk.fact(maker.inputs[1]).constant
        added = sorted(int(a) % rank for a in data.reshape(-1)) if data is not None else [axis]
        return None if axis in added else [(0, axis - sum(a < axis for a in added))]
    return None


def _sliced_on(walk: Walk, node: ir.Node, maker: ir.Node, axis: int, source: Source) -> ir.Value | None:
    """``table[:, :16]`` with the new size for its end; the table itself must be long enough when it runs."""
    given = [None if v is None else walk.fact(v).constant for v in maker.inputs[1:]]
    rank = len(walk.fact(maker.outputs[0]).was or ())
    starts, ends = (None if d is None else d.reshape(-1).tolist() for d in given[:2])
    if (
        starts is None
        or ends is None
        or any(d is None and v is not None for d, v in zip(given, maker.inputs[1:], strict=True))
    ):
        return None
    axes = given[2].reshape(-1).tolist() if len(given) > 2 and given[2] is not None else list(range(len(starts)))
    steps = given[3].reshape(-1).tolist() if len(given) > 3 and given[3] is not None else [1] * len(starts)
    at = next((n for n, a in enumerate(axes) if a % rank == axis), None)
    if at is None or steps[at] != 1 or starts[at] < 0 or ends[at] < 0:
        return None
    end = walk.size(node, source[0], [source[1]])
    end = walk.make(node, "Add", [end, walk.constant(node, [starts[at]])]) if starts[at] else end
    parts = [end if n == at else walk.constant(node, [e]) for n, e in enumerate(ends)]
    joined = walk.make(node, "Concat", parts, axis=0) if len(parts) > 1 else end
    rest = [walk.constant(node, v) for v in (starts, axes, steps)]
    return walk.make(node, "Slice", [maker.inputs[0], rest[0], joined, rest[1], rest[2]])
