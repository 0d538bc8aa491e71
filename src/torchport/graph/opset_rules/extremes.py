"""Max, Min, Sum and Mean: integers came to Max and Min in 12, broadcasting to all four in 8."""

from __future__ import annotations

import functools

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


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


DOWN: Rules = {
    ("Max", 12): integers_by_choice,
    ("Min", 12): integers_by_choice,
    **{(op, 8): without_broadcast for op in ("Max", "Min", "Sum", "Mean")},
}
UP: Rules = {}
