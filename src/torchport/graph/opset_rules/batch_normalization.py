"""BatchNormalization: ``spatial`` went in 9, ``training_mode`` came in 14. Inference means the same throughout."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def inference_only(node: ir.Node, b: Builder) -> None:
    if node_reader.integer(node, "training_mode", 0):
        raise Refusal("training_mode=1 came in opset 14")
    node.attributes.pop("training_mode", None)


def spatial_only(node: ir.Node, b: Builder) -> None:
    if not node_reader.integer(node, "spatial", 1):
        raise Refusal("spatial=0 went in opset 9")
    node.attributes.pop("spatial", None)


def first_output_only(node: ir.Node, b: Builder) -> None:
    if any(node_reader.is_used(node, i) for i in range(1, len(node.outputs))):
        raise Refusal("its training outputs changed in opset 14")


DOWN: Rules = {("BatchNormalization", 14): inference_only}
UP: Rules = {("BatchNormalization", 9): spatial_only, ("BatchNormalization", 14): first_output_only}
