"""Mod: since 28 floats may be taken modulo with the sign of the divisor (fmod=0); before, only as C's fmod."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def integers_only(node: ir.Node, b: Builder) -> None:
    if (
        not node_reader.integer(node, "fmod", 0)
        and node_reader.dtype(node_reader.required(node, 0)) in node_reader.FLOATS
    ):
        raise Refusal("fmod=0 of floats came in opset 28")


DOWN: Rules = {("Mod", 28): integers_only}
UP: Rules = {}
