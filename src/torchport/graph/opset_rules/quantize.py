"""QuantizeLinear and DequantizeLinear: per axis since 13, blocked with a chosen dtype since 21, precision since 23."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def precision_of_scale(node: ir.Node, b: Builder) -> None:
    """``precision`` and the dtype dequantized to may be written out, as long as they are those of the scale."""
    name = "precision" if node.op_type == "QuantizeLinear" else "output_dtype"
    asked = node_reader.integer(node, name, 0)
    if asked and asked != int(node_reader.dtype(node_reader.required(node, 1))):
        raise Refusal(f"{name} other than the dtype of its scale came in opset 23")
    node.attributes.pop(name, None)


def dtype_by_zero_point(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """Before 21 the zero point alone says which dtype to quantize to, so one of zeros is put there."""
    asked = node_reader.integer(node, "output_dtype", 0)
    if not asked or node_reader.input_at(node, 2) is not None:
        node.attributes.pop("output_dtype", None)
        return None
    if node_reader.integer(node, "block_size", 0):
        raise Refusal("blocked quantization came in opset 21")
    x, scale = node_reader.required(node, 0), node_reader.required(node, 1)
    dims = node_reader.static_dims(scale)
    if dims is None:
        raise Refusal("the shape of its scale is not known")
    zeros = b.constant(np.zeros(dims, dtype=ir.DataType(asked).numpy()))
    given = {name: node_reader.attribute(node, name) for name in ("axis", "saturate")}
    return [b.op("QuantizeLinear", x, scale, zeros, **given)]


def one_scale(node: ir.Node, b: Builder) -> None:
    if node_reader.rank(node_reader.required(node, 1)) != 0:
        raise Refusal("a scale for each channel came in opset 13")
    node.attributes.pop("axis", None)


DOWN: Rules = {
    ("QuantizeLinear", 23): precision_of_scale,
    ("DequantizeLinear", 23): precision_of_scale,
    ("QuantizeLinear", 21): dtype_by_zero_point,
    ("QuantizeLinear", 13): one_scale,
    ("DequantizeLinear", 13): one_scale,
}
UP: Rules = {}
