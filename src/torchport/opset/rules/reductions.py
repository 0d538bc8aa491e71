"""Rules for reductions, Softmax, Max, Min, Sum, Mean and CumSum, and for axes counted from the back."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules

# Reductions: axes became an input (ReduceSum in 13, the others in 18); lesser dtypes came in 12 and 20.

_OTHERS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)
REDUCTIONS = ("ReduceSum", *_OTHERS)
_UNCHANGED_BY_NOTHING = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def axes_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    """``axes`` input to attribute.

    No axes mean all of them, unless ``noop_with_empty_axes`` is set: then nothing is reduced, which is the
    identity for sums, means, products and extremes.
    """
    x, given = node_reader.required(node, 0), node_reader.input_at(node, 1)
    axes = node_reader.constant_ints(given, "the list of axes") if given is not None else []
    keepdims = node_reader.integer(node, "keepdims", 1)
    if axes:
        return [b.op(node.op_type, x, axes=axes, keepdims=keepdims)]
    if not node_reader.integer(node, "noop_with_empty_axes", 0):
        return [b.op(node.op_type, x, keepdims=keepdims)]
    if node.op_type not in _UNCHANGED_BY_NOTHING:
        raise Refusal("reducing over no axes cannot be written with an attribute")
    return [b.op("Identity", x)]


def axes_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    """``axes`` attribute to input; without any both forms reduce over all axes."""
    axes = node_reader.integers(node, "axes")
    inputs = [node_reader.required(node, 0)] + ([b.ints(axes)] if axes is not None else [])
    return [b.op(node.op_type, *inputs, keepdims=node_reader.integer(node, "keepdims", 1))]


def extreme_of_lesser_type(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """max and min of bool (20) and of 8-bit integers (12) by way of int32, which holds them all, in order.

    Over nothing they give the least or the greatest of the dtype; int32's own are cut to the dtype at hand.
    """
    x = node_reader.required(node, 0)
    kind = node_reader.dtype(x)
    if kind not in (ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8):
        return None
    given = {name: attr.value for name, attr in node.attributes.items() if not attr.is_ref()}
    wide = b.op(node.op_type, b.cast(x, ir.DataType.INT32), *node.inputs[1:], **given)
    if kind == ir.DataType.BOOL:
        return [b.op("Greater", wide, b.scalar_like(0, wide))]
    span = np.iinfo(kind.numpy())
    low, high = b.scalar_like(span.min, wide), b.scalar_like(span.max, wide)
    return [b.cast(smaller(b, larger(b, wide, low), high), kind)]


# Axes counted from the back came with opset 11: before, they are counted from the front, which takes the rank.

_ONE_AXIS = (
    "ArgMax",
    "ArgMin",
    "Compress",
    "Concat",
    "Flatten",
    "Hardmax",
    "LogSoftmax",
    "Softmax",
    "Split",
)
_SEVERAL = (*REDUCTIONS, "Squeeze")


def axis_from_front(node: ir.Node, b: Builder) -> None:
    """axis = rank + axis, where it is negative."""
    axis = node_reader.integer(node, "axis", 0)
    if axis < 0:
        set_integer(node, "axis", axis + node_reader.rank(node.inputs[0]))


def axes_from_front(node: ir.Node, b: Builder) -> None:
    """axes[i] = rank + axes[i], where negative; the rank is that of the input."""
    _count_from_front(node, node_reader.integers(node, "axes"), extra=0)


def unsqueeze_from_front(node: ir.Node, b: Builder) -> None:
    """As above; the axes of Unsqueeze are those of its output, whose rank is the input's plus their number."""
    axes = node_reader.integers(node, "axes")
    _count_from_front(node, axes, extra=len(axes or []))


def _count_from_front(node: ir.Node, axes: list[int] | None, extra: int) -> None:
    if axes and min(axes) < 0:
        axes = node_reader.non_negative(axes, node_reader.rank(node.inputs[0]) + extra)
        node.attributes["axes"] = ir.AttrInt64s("axes", axes)


def set_integer(node: ir.Node, name: str, value: int) -> None:
    node.attributes[name] = ir.AttrInt64(name, value)


# Softmax, LogSoftmax and Hardmax: over one axis since 13; before, over all axes from ``axis`` on, taken as one.

_OPS = ("Softmax", "LogSoftmax", "Hardmax")


def over_flattened_tail(node: ir.Node, b: Builder) -> list[ir.Value]:
    """With the axis last, the tail is that axis alone and both mean the same; otherwise it is swapped there."""
    x = node_reader.required(node, 0)
    rank = node_reader.rank(x)
    axis = node_reader.non_negative([node_reader.integer(node, "axis", -1)], rank)[0]
    if rank == 0:
        raise Refusal("its input is a scalar")
    if axis == rank - 1:
        return [b.op(node.op_type, x, axis=axis)]
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    swapped = b.op("Transpose", x, perm=order)
    return [b.op("Transpose", b.op(node.op_type, swapped, axis=rank - 1), perm=order)]


def over_one_axis(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The flattened tail is one axis after Flatten; the shape is put back afterwards."""
    x, axis = node_reader.required(node, 0), node_reader.integer(node, "axis", 1)
    if x.shape is not None and axis in (-1, len(x.shape) - 1):
        return [b.op(node.op_type, x, axis=-1)]
    rows = b.op("Flatten", x, axis=axis)
    return [b.op("Reshape", b.op(node.op_type, rows, axis=-1), b.op("Shape", x))]


# Max, Min, Sum and Mean: integers came to Max and Min in 12, broadcasting to all four in 8.


def larger(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x if x > y else y; only for integers, where no NaN needs thought."""
    return b.op("Where", b.op("Greater", x, y), x, y)


def smaller(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.op("Where", b.op("Less", x, y), x, y)


def integers_by_choice(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    values = [node_reader.required(node, i) for i in range(len(node.inputs))]
    if node_reader.dtype(values[0]) in node_reader.FLOATS:
        return None
    choose = larger if node.op_type == "Max" else smaller
    return [b.op("Identity", functools.reduce(functools.partial(choose, b), values))]


def without_broadcast(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """Below 8 all inputs have one shape. A sum of other shapes is a chain of Add, which broadcasts since 7."""
    values = [node_reader.required(node, i) for i in range(len(node.inputs))]
    if len(values) == 1 or all(node_reader.same_shape(values[0], v) for v in values[1:]):
        return None
    if node.op_type in ("Max", "Min"):
        raise Refusal("its inputs are not known to have one shape, and it broadcasts only since opset 8")
    total = functools.reduce(lambda x, y: b.op("Add", x, y), values)
    if node.op_type == "Sum":
        return [total]
    return [b.op("Div", total, b.scalar_like(len(values), total))]


# CumSum (11) as a Scan that carries the sum along; exact, as it adds the same numbers in the same order.


def carried_sum(node: ir.Node, b: Builder) -> list[ir.Value]:
    """s' = s + x_t; the output is s' (or s when exclusive); reversed, the axis is read and written from its end."""
    x = node_reader.required(node, 0)
    rank = node_reader.rank(x)
    given = node_reader.constant_ints(node_reader.required(node, 1), "its axis")
    axis = node_reader.non_negative(given, rank)[0]
    backwards = node_reader.integer(node, "reverse", 0)
    start = _zeros(x, axis, b)
    body = _body(x, node_reader.integer(node, "exclusive", 0), b, rank - 1)
    scan = ir.node(
        "Scan",
        [start, x],
        attributes={
            "body": body,
            "num_scan_inputs": 1,
            "scan_input_axes": [axis],
            "scan_input_directions": [backwards],
            "scan_output_axes": [axis],
            "scan_output_directions": [backwards],
        },
        num_outputs=2,
    )
    y = b.add(scan).outputs[1]
    y.type, y.shape = x.type, x.shape
    scan.outputs[0].type, scan.outputs[0].shape = start.type, start.shape
    return [y]


def _zeros(x: ir.Value, axis: int, b: Builder) -> ir.Value:
    sizes = [b.size(x, i) for i in range(node_reader.rank(x)) if i != axis]
    shape = b.op("Concat", *sizes, axis=0) if sizes else b.ints([])
    fill = np.zeros(1, dtype=node_reader.dtype(x).numpy())
    return b.op("ConstantOfShape", shape, value=ir.tensor(fill))


def _body(x: ir.Value, exclusive: int, b: Builder, rank: int) -> ir.Graph:
    kind, shape = x.type, ir.Shape([None] * rank)
    total, term = (_value(b, f"{x.name}_{part}", kind, shape) for part in ("sum", "term"))
    add = ir.node("Add", [total, term], num_outputs=1)
    after = add.outputs[0]
    out = ir.node("Identity", [total if exclusive else after], num_outputs=1)
    for value in (after, out.outputs[0]):
        value.name, value.type, value.shape = b.fresh(f"{x.name}_sum"), kind, shape
    for inner in (add, out):
        inner.name = b.fresh(f"{b.node.name}_{inner.op_type}")
        inner.metadata_props.update(b.node.metadata_props)
    return ir.Graph([total, term], [after, out.outputs[0]], nodes=[add, out], name=b.fresh("running_sum"))


def _value(b: Builder, name: str, kind: ir.TypeProtocol | None, shape: ir.Shape) -> ir.Value:
    return ir.Value(name=b.fresh(name), type=kind, shape=shape)


DOWN: Rules = {
    **{(op, 18): axes_to_attribute for op in _OTHERS},
    ("ReduceSum", 13): axes_to_attribute,
    **{(op, at): extreme_of_lesser_type for op in ("ReduceMax", "ReduceMin") for at in (20, 12)},
    **{(op, 11): axis_from_front for op in _ONE_AXIS},
    **{(op, 11): axes_from_front for op in _SEVERAL},
    ("Unsqueeze", 11): unsqueeze_from_front,
    **{(op, 13): over_flattened_tail for op in _OPS},
    ("Max", 12): integers_by_choice,
    ("Min", 12): integers_by_choice,
    **{(op, 8): without_broadcast for op in ("Max", "Min", "Sum", "Mean")},
    ("CumSum", 11): carried_sum,
}
UP: Rules = {
    **{(op, 18): axes_to_input for op in _OTHERS},
    ("ReduceSum", 13): axes_to_input,
    **{(op, 13): over_one_axis for op in _OPS},
}
