"""Gather, ScatterElements and OneHot: indices counted from the back came in 11, with ScatterElements for Scatter."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def from_front(b: Builder, indices: ir.Value, size: ir.Value) -> ir.Value:
    """i + size where i < 0, else i, in arithmetic every opset has: i + size · (i < 0).

    The comparison is made in float32: below 9 integers cannot be compared, and the cast keeps the sign.
    """
    kind = node_reader.dtype(indices)
    below = b.op("Less", b.cast(indices, ir.DataType.FLOAT), b.constant(0, np.float32))
    return b.op("Add", indices, b.op("Mul", b.cast(below, kind), b.cast(size, kind)))


def _scalar_size(b: Builder, data: ir.Value, axis: int) -> ir.Value:
    known = node_reader.static_dim(data, axis)
    if known is not None:
        return b.constant(known, np.int64)
    return b.op("Gather", b.op("Shape", data), b.constant(axis, np.int64), axis=0)


def _known_from_front(b: Builder, indices: ir.Value, data: ir.Value, axis: int) -> ir.Value:
    known = node_reader.constant(indices)
    if known is not None and known.min(initial=0) >= 0:
        return indices
    size = node_reader.static_dim(data, axis)
    if known is not None and size is not None:
        return b.constant(np.where(known < 0, known + size, known).astype(known.dtype))
    return from_front(b, indices, _scalar_size(b, data, axis))


def gather(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    data, indices = node_reader.required(node, 0), node_reader.required(node, 1)
    known = node_reader.constant(indices)
    if known is not None and known.min(initial=0) >= 0:
        return None
    axis = _front_axis(node, data)
    return [b.op("Gather", data, _known_from_front(b, indices, data, axis), axis=axis)]


def scatter_elements(node: ir.Node, b: Builder) -> list[ir.Value]:
    data, indices, updates = (node_reader.required(node, i) for i in range(3))
    axis = _front_axis(node, data)
    return [b.op("Scatter", data, _known_from_front(b, indices, data, axis), updates, axis=axis)]


def scatter(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Scatter is ScatterElements by its old name."""
    return [b.op("ScatterElements", *node.inputs, axis=node_reader.integer(node, "axis", 0))]


def no_extreme_reduction(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "reduction", "none") in ("max", "min"):
        raise Refusal("reduction max or min came in opset 18")


def one_hot(node: ir.Node, b: Builder) -> list[ir.Value]:
    indices, depth, values = (node_reader.required(node, i) for i in range(3))
    if node_reader.dtype(indices) not in (ir.DataType.INT64, ir.DataType.INT32):
        raise Refusal("its indices are no int32 or int64")
    axis = node_reader.integer(node, "axis", -1)
    axis = axis if axis >= -1 else axis + node_reader.rank(indices) + 1
    known = node_reader.constant(indices)
    if known is None or known.min(initial=0) < 0:
        indices = _within(b, indices, b.op("Reshape", depth, b.ints([])))
    return [b.op("OneHot", indices, depth, values, axis=axis)]


def _within(b: Builder, indices: ir.Value, depth: ir.Value) -> ir.Value:
    """i + depth where -depth <= i < 0, else i: engines add the depth once more, so what is out of range stays so."""
    moved = from_front(b, indices, depth)
    return from_front(b, moved, b.op("Neg", b.cast(depth, node_reader.dtype(indices))))


def _front_axis(node: ir.Node, data: ir.Value) -> int:
    axis = node_reader.integer(node, "axis", 0)
    return axis if axis >= 0 else axis + node_reader.rank(data)


DOWN: Rules = {
    ("Gather", 11): gather,
    ("ScatterElements", 18): no_extreme_reduction,
    ("ScatterND", 18): no_extreme_reduction,
    ("ScatterElements", 11): scatter_elements,
    ("OneHot", 11): one_hot,
}
UP: Rules = {("Scatter", 11): scatter}
