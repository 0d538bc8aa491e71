"""Squeeze and Unsqueeze: axes moved from attribute to input in opset 13."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules


def axes_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    """A constant list of axes becomes the attribute; Squeeze may have none."""
    x, given = node_reader.required(node, 0), node_reader.input_at(node, 1)
    axes = node_reader.constant_ints(given, "the list of axes") if given is not None else None
    return [b.op(node.op_type, x, axes=axes)]


def axes_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    axes = node_reader.integers(node, "axes")
    x = node_reader.required(node, 0)
    return [b.op(node.op_type, x) if axes is None else b.op(node.op_type, x, b.ints(axes))]


DOWN: Rules = {("Squeeze", 13): axes_to_attribute, ("Unsqueeze", 13): axes_to_attribute}
UP: Rules = {("Squeeze", 13): axes_to_input, ("Unsqueeze", 13): axes_to_input}
