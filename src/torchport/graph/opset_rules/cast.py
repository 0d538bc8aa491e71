"""Cast and CastLike: what bears on 8-bit floats alone (saturate in 19, round_mode in 24) is dropped for other dtypes."""

from __future__ import annotations

import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules


def without_float8_options(node: ir.Node, b: Builder) -> None:
    if "FLOAT8" not in reading.dtype(node.outputs[0]).name:
        node.attributes.pop("round_mode", None)
        if b.opset < 19:
            node.attributes.pop("saturate", None)


DOWN: Rules = {(op, at): without_float8_options for op in ("Cast", "CastLike") for at in (24, 19)}
UP: Rules = {}
