"""Cast and CastLike: ``saturate`` (19) and ``round_mode`` (24) bear on 8-bit floats alone, so others drop them."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def _is_saturated_fnuz(node: ir.Node) -> bool:
    return node_reader.dtype(node.outputs[0]).name.endswith("FNUZ") and bool(node_reader.integer(node, "saturate", 1))


def infinity_unchanged(node: ir.Node, b: Builder) -> None:
    """Since 24 infinity saturates to the largest FNUZ number; before, it became NaN."""
    if _is_saturated_fnuz(node):
        raise Refusal("what infinity becomes as an 8-bit float changed in opset 24")


def options_of_24(node: ir.Node, b: Builder) -> None:
    infinity_unchanged(node, b)
    without_float8_options(node, b)


def without_float8_options(node: ir.Node, b: Builder) -> None:
    if "FLOAT8" not in node_reader.dtype(node.outputs[0]).name:
        node.attributes.pop("round_mode", None)
        if b.opset < 19:
            node.attributes.pop("saturate", None)


_OPS = ("Cast", "CastLike")
DOWN: Rules = {
    **{(op, 24): options_of_24 for op in _OPS},
    **{(op, 19): without_float8_options for op in _OPS},
}
UP: Rules = {(op, 24): infinity_unchanged for op in _OPS}
