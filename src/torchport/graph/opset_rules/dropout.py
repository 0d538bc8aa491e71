"""Dropout: the mask turned boolean in 10, training explicit in 12. In inference it is Identity."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules
from torchport.graph.opset_rules.reading import Refusal


def inference_is_identity(node: ir.Node, b: Builder) -> list[ir.Value]:
    mode = reading.input_at(node, 2)
    training = reading.constant(mode) if mode is not None else np.zeros((), dtype=bool)
    if training is None or training.any():
        raise Refusal("it drops in training mode, which is explicit only since opset 12")
    if reading.is_used(node, 1):
        raise Refusal("its mask is used")
    return [b.op("Identity", reading.required(node, 0))]


def ratio_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    ratio = b.constant(reading.real(node, "ratio", 0.5), np.float32)
    return list(b.ops("Dropout", [reading.required(node, 0), ratio], len(node.outputs)))


def no_mask(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The mask changed its dtype in 10, so it must not be read; then it need not be there either."""
    if reading.is_used(node, 1):
        raise Refusal("its mask, whose dtype changed in opset 10, is used")
    return [b.op("Dropout", reading.required(node, 0), ratio=reading.real(node, "ratio", 0.5))]


DOWN: Rules = {("Dropout", 12): inference_is_identity, ("Dropout", 10): no_mask}
UP: Rules = {("Dropout", 10): no_mask, ("Dropout", 12): ratio_to_input}
