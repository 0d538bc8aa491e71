"""Reductions: axes became an input (ReduceSum in 13, the others in 18); lesser dtypes came in 12 and 20."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.graph.opset_rules.extremes import larger, smaller
from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal

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


DOWN: Rules = {
    **{(op, 18): axes_to_attribute for op in _OTHERS},
    ("ReduceSum", 13): axes_to_attribute,
    **{(op, at): extreme_of_lesser_type for op in ("ReduceMax", "ReduceMin") for at in (20, 12)},
}
UP: Rules = {**{(op, 18): axes_to_input for op in _OTHERS}, ("ReduceSum", 13): axes_to_input}
