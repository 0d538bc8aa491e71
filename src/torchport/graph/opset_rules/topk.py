"""TopK: k became an input in 10; smallest first, unsorted, and integers came in 11."""

from __future__ import annotations

import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules
from torchport.graph.opset_rules.reading import Refusal


def largest_only(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The k smallest of x are the k largest of -x, with their signs turned back.

    Integers go by way of float64, which holds those of 32 bits exactly. Sorted is one of the orders "unsorted" allows.
    """
    x, k = reading.required(node, 0), reading.required(node, 1)
    kind = reading.dtype(x)
    if kind not in reading.FLOATS and kind not in reading.SMALL_INTS:
        raise Refusal(f"{kind.name.lower()} came in opset 11")
    axis = reading.integer(node, "axis", -1)
    axis = axis if axis >= -1 else axis + reading.rank(x)
    largest = reading.integer(node, "largest", 1)
    data = x if kind in reading.FLOATS else b.cast(x, ir.DataType.DOUBLE)
    data = data if largest else b.op("Neg", data)
    values, indices = b.ops("TopK", [data, k], 2, axis=axis)
    values = values if largest else b.op("Neg", values)
    return [b.cast(values, kind), indices]


def k_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    k = reading.constant_ints(reading.required(node, 1), "k")[0]
    return list(b.ops("TopK", [reading.required(node, 0)], 2, axis=reading.integer(node, "axis", -1), k=k))


def k_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    k = b.ints([reading.integer(node, "k", 1)])
    return list(b.ops("TopK", [reading.required(node, 0), k], 2, axis=reading.integer(node, "axis", -1)))


DOWN: Rules = {("TopK", 11): largest_only, ("TopK", 10): k_to_attribute}
UP: Rules = {("TopK", 10): k_to_input}
