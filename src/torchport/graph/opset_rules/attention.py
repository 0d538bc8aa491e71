"""Attention: since 24 a mask may be shorter than the keys, which 23 does not know; such a node is taken apart."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def no_mask(node: ir.Node, b: Builder) -> None:
    if node_reader.input_at(node, 3) is not None:
        raise Refusal("a mask that may be shorter than the keys came in opset 24")


DOWN: Rules = {("Attention", 24): no_mask}
UP: Rules = {}
