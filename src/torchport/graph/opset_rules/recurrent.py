"""LSTM, GRU and RNN: the batch-first ``layout`` came in 14; before, inputs and outputs are transposed."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules

_STATES = (5, 6)  # initial_h, and initial_c of the LSTM


def sequence_first(node: ir.Node, b: Builder) -> list[ir.Value | None] | None:
    """X and the states swap batch with their first axis; Y goes from (S, D, B, H) to (B, S, D, H)."""
    if not node_reader.integer(node, "layout", 0):
        node.attributes.pop("layout", None)
        return None
    inputs = list(node.inputs)
    for index in (0, *_STATES):
        value = node_reader.input_at(node, index)
        if value is not None:
            inputs[index] = b.op("Transpose", value, perm=[1, 0, 2])
    given = {n: a.value for n, a in node.attributes.items() if n != "layout" and not a.is_ref()}
    outputs = list(b.ops(node.op_type, inputs, len(node.outputs), **given))
    orders = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
    return [b.op("Transpose", y, perm=order) for y, order in zip(outputs, orders, strict=False)]


DOWN: Rules = {(op, 14): sequence_first for op in ("LSTM", "GRU", "RNN")}
UP: Rules = {}
