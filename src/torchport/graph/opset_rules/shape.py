"""Shape: ``start`` and ``end`` came in 15; before, the whole shape is taken and sliced, which clamps the same way."""

from __future__ import annotations

import onnx_ir as ir

from torchport.graph.opset_rules import reading
from torchport.graph.opset_rules.builder import Builder, Rules

_END = 2**31 - 1


def whole_then_sliced(node: ir.Node, b: Builder) -> list[ir.Value]:
    start, end = reading.integer(node, "start", 0), reading.integer(node, "end", _END)
    whole = b.op("Shape", reading.required(node, 0))
    return [whole if (start, end) == (0, _END) else b.slice(whole, start, end)]


DOWN: Rules = {("Shape", 15): whole_then_sliced}
UP: Rules = {}
