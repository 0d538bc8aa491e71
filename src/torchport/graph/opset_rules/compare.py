"""Equal of floats (11), Greater and Less of integers (9)."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def equal(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """x == y: neither below, nor above, nor NaN. Lesser integers by way of int64, which holds them."""
    x, y = node_reader.required(node, 0), node_reader.required(node, 1)
    kind = node_reader.dtype(x)
    if kind in (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64):
        return None
    if kind in node_reader.SMALL_INTS:
        return [b.op("Equal", *(b.cast(v, ir.DataType.INT64) for v in (x, y)))]
    if kind not in node_reader.FLOATS:
        raise Refusal(f"{kind.name.lower()} came after opset 10")
    differ = b.op("Or", b.op("Less", x, y), b.op("Greater", x, y))
    nan = b.op("Or", b.op("IsNaN", x), b.op("IsNaN", y))
    return [b.op("Not", b.op("Or", differ, nan))]


def integers_as_float64(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """float64 holds every integer of 32 bits, so the order is the same."""
    x, y = node_reader.required(node, 0), node_reader.required(node, 1)
    kind = node_reader.dtype(x)
    if kind in node_reader.FLOATS:
        return None
    if kind not in node_reader.SMALL_INTS:
        raise Refusal(f"{kind.name.lower()} came in opset 9")
    return [b.op(node.op_type, *(b.cast(v, ir.DataType.DOUBLE) for v in (x, y)))]


DOWN: Rules = {
    ("Equal", 11): equal,
    ("Greater", 9): integers_as_float64,
    ("Less", 9): integers_as_float64,
}
UP: Rules = {}
