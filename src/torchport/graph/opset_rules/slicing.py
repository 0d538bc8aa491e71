"""Slice: bounds became inputs, with steps, in 10; axes may count from the back since 11."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def axes_from_front(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    given = node_reader.input_at(node, 3)
    if given is None:
        return None
    axes = node_reader.constant_ints(given, "the list of axes")
    if min(axes, default=0) >= 0:
        return None
    inputs = list(node.inputs)
    inputs[3] = b.ints(node_reader.non_negative(axes, node_reader.rank(inputs[0])))
    return [b.op("Slice", *inputs)]


def bounds_to_attributes(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Constant bounds become attributes; the attribute form knows no steps but 1."""
    starts = node_reader.constant_ints(node_reader.required(node, 1), "the list of starts")
    ends = node_reader.constant_ints(node_reader.required(node, 2), "the list of ends")
    axes, steps = node_reader.input_at(node, 3), node_reader.input_at(node, 4)
    if steps is not None and any(s != 1 for s in node_reader.constant_ints(steps, "the list of steps")):
        raise Refusal("steps other than 1 came in opset 10")
    chosen = node_reader.constant_ints(axes, "the list of axes") if axes is not None else None
    return [b.op("Slice", node_reader.required(node, 0), starts=starts, ends=ends, axes=chosen)]


def bounds_to_inputs(node: ir.Node, b: Builder) -> list[ir.Value]:
    starts, ends = node_reader.integers(node, "starts") or [], node_reader.integers(node, "ends") or []
    axes = node_reader.integers(node, "axes") or list(range(len(starts)))
    return [b.op("Slice", node_reader.required(node, 0), b.ints(starts), b.ints(ends), b.ints(axes))]


DOWN: Rules = {("Slice", 11): axes_from_front, ("Slice", 10): bounds_to_attributes}
UP: Rules = {("Slice", 10): bounds_to_inputs}
