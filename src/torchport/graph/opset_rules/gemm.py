"""Gemm: the third input became optional in 11; a zero that broadcasts adds nothing."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules

_GIVEN = ("alpha", "beta", "transA", "transB")


def add_zero(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    if node_reader.input_at(node, 2) is not None:
        return None
    x, y = node_reader.required(node, 0), node_reader.required(node, 1)
    zero = b.constant([0], node_reader.dtype(x).numpy())
    return [b.op("Gemm", x, y, zero, **{name: node_reader.attribute(node, name) for name in _GIVEN})]


DOWN: Rules = {("Gemm", 11): add_zero}
UP: Rules = {}
