"""TopK: k became an input in 10; smallest first, unsorted, and integers came in 11."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def largest_only(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The k smallest of x are the k largest of -x, with their signs turned back.

    Integers go by way of float64, which holds those of 32 bits exactly. Sorted is one of the orders "unsorted" allows.
    """
    x, k = node_reader.required(node, 0), node_reader.required(node, 1)
    kind = node_reader.dtype(x)
    if kind not in node_reader.FLOATS and kind not in node_reader.SMALL_INTS:
        raise Refusal(f"{kind.name.lower()} came in opset 11")
    axis = node_reader.integer(node, "axis", -1)
    axis = axis if axis >= -1 else axis + node_reader.rank(x)
    largest = node_reader.integer(node, "largest", 1)
    data = x if kind in node_reader.FLOATS else b.cast(x, ir.DataType.DOUBLE)
    data = data if largest else b.op("Neg", data)
    values, indices = b.ops("TopK", [data, k], 2, axis=axis)
    values = values if largest else b.op("Neg", values)
    return [b.cast(values, kind), indices]


def k_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    k = node_reader.constant_ints(node_reader.required(node, 1), "k")[0]
    return list(b.ops("TopK", [node_reader.required(node, 0)], 2, axis=node_reader.integer(node, "axis", -1), k=k))


def k_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    k = b.ints([node_reader.integer(node, "k", 1)])
    return list(b.ops("TopK", [node_reader.required(node, 0), k], 2, axis=node_reader.integer(node, "axis", -1)))


DOWN: Rules = {("TopK", 11): largest_only, ("TopK", 10): k_to_attribute}
UP: Rules = {("TopK", 10): k_to_input}
