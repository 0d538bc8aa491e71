"""Dropout: the mask turned boolean in 10, training explicit in 12. In inference it is Identity."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def inference_is_identity(node: ir.Node, b: Builder) -> list[ir.Value]:
    mode = node_reader.input_at(node, 2)
    training = node_reader.constant(mode) if mode is not None else np.zeros((), dtype=bool)
    if training is None or training.any():
        raise Refusal("it drops in training mode, which is explicit only since opset 12")
    if node_reader.is_used(node, 1):
        raise Refusal("its mask is used")
    return [b.op("Identity", node_reader.required(node, 0))]


def ratio_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    ratio = b.constant(node_reader.real(node, "ratio", 0.5), np.float32)
    return list(b.ops("Dropout", [node_reader.required(node, 0), ratio], len(node.outputs)))


def no_mask(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The mask changed its dtype in 10, so it must not be read; then it need not be there either."""
    if node_reader.is_used(node, 1):
        raise Refusal("its mask, whose dtype changed in opset 10, is used")
    return [b.op("Dropout", node_reader.required(node, 0), ratio=node_reader.real(node, "ratio", 0.5))]


DOWN: Rules = {("Dropout", 12): inference_is_identity, ("Dropout", 10): no_mask}
UP: Rules = {("Dropout", 10): no_mask, ("Dropout", 12): ratio_to_input}
