"""ConvTranspose: what ``auto_pad`` and ``output_shape`` mean was written anew in 11; explicit pads mean the same."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def explicit_pads(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Refusal("the meaning of auto_pad changed in opset 11")
    if node_reader.attribute(node, "output_shape") is not None:
        raise Refusal("the meaning of output_shape changed in opset 11")


DOWN: Rules = {("ConvTranspose", 11): explicit_pads}
UP: Rules = {("ConvTranspose", 11): explicit_pads}
