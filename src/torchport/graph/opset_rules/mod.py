"""Mod: since 28 floats may be taken modulo with the sign of the divisor (fmod=0); before, only as C's fmod."""

from __future__ import annotations

import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules
from torchport.graph.opset_rules.reading import Refusal


def integers_only(node: ir.Node, b: Builder) -> None:
    if not reading.integer(node, "fmod", 0) and reading.dtype(reading.required(node, 0)) in reading.FLOATS:
        raise Refusal("fmod=0 of floats came in opset 28")


DOWN: Rules = {("Mod", 28): integers_only}
UP: Rules = {}
