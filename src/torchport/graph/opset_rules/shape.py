"""Shape: ``start`` and ``end`` came in 15; before, the whole shape is taken and sliced, which clamps the same way."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules

_END = 2**31 - 1


def whole_then_sliced(node: ir.Node, b: Builder) -> list[ir.Value]:
    start, end = node_reader.integer(node, "start", 0), node_reader.integer(node, "end", _END)
    whole = b.op("Shape", node_reader.required(node, 0))
    return [whole if (start, end) == (0, _END) else b.slice(whole, start, end)]


DOWN: Rules = {("Shape", 15): whole_then_sliced}
UP: Rules = {}
