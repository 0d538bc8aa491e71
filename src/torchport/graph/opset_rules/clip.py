"""Clip: bounds became inputs in 11, integers came in 12."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport import tensors
from torchport.graph.opset_rules.extremes import larger, smaller
from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def integers_by_choice(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """min(max(x, low), high), each a choice between two integers."""
    x, low, high = node_reader.required(node, 0), node_reader.input_at(node, 1), node_reader.input_at(node, 2)
    if node_reader.dtype(x) in node_reader.FLOATS:
        return None
    x = x if low is None else larger(b, x, low)
    x = x if high is None else smaller(b, x, high)
    return [b.op("Identity", x)]


def bounds_to_attributes(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Constant bounds become float32 attributes; bounds computed at run time become Max and Min, as the schema says."""
    x, low, high = node_reader.required(node, 0), node_reader.input_at(node, 1), node_reader.input_at(node, 2)
    bounds = [None if v is None else node_reader.constant(v) for v in (low, high)]
    if any(array is None and v is not None for array, v in zip(bounds, (low, high), strict=True)):
        x = x if low is None else b.op("Max", x, low)
        x = x if high is None else b.op("Min", x, high)
        return [b.op("Identity", x)]
    numbers = [None if array is None else _float32(array) for array in bounds]
    return [b.op("Clip", x, min=numbers[0], max=numbers[1])]


def _float32(array: tensors.Array) -> float:
    number = float(np.float32(array.reshape(-1)[0]))
    if number != array.reshape(-1)[0]:
        raise Refusal("a bound is no float32")
    return number


def bounds_to_inputs(node: ir.Node, b: Builder) -> list[ir.Value]:
    x = node_reader.required(node, 0)
    low, high = node_reader.attribute(node, "min"), node_reader.attribute(node, "max")
    inputs = [None if bound is None else b.scalar_like(float(bound), x) for bound in (low, high)]
    return [b.op("Clip", x, *inputs)]


DOWN: Rules = {("Clip", 12): integers_by_choice, ("Clip", 11): bounds_to_attributes}
UP: Rules = {("Clip", 11): bounds_to_inputs}
