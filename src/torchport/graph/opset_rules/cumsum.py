"""CumSum (11) as a Scan that carries the sum along; exact, as it adds the same numbers in the same order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules


def carried_sum(node: ir.Node, b: Builder) -> list[ir.Value]:
    """s' = s + x_t; the output is s' (or s when exclusive); reversed, the axis is read and written from its end."""
    x = node_reader.required(node, 0)
    rank = node_reader.rank(x)
    given = node_reader.constant_ints(node_reader.required(node, 1), "its axis")
    axis = node_reader.non_negative(given, rank)[0]
    backwards = node_reader.integer(node, "reverse", 0)
    start = _zeros(x, axis, b)
    body = _body(x, node_reader.integer(node, "exclusive", 0), b, rank - 1)
    scan = ir.node(
        "Scan",
        [start, x],
        attributes={
            "body": body,
            "num_scan_inputs": 1,
            "scan_input_axes": [axis],
            "scan_input_directions": [backwards],
            "scan_output_axes": [axis],
            "scan_output_directions": [backwards],
        },
        num_outputs=2,
    )
    y = b.add(scan).outputs[1]
    y.type, y.shape = x.type, x.shape
    scan.outputs[0].type, scan.outputs[0].shape = start.type, start.shape
    return [y]


def _zeros(x: ir.Value, axis: int, b: Builder) -> ir.Value:
    sizes = [b.size(x, i) for i in range(node_reader.rank(x)) if i != axis]
    shape = b.op("Concat", *sizes, axis=0) if sizes else b.ints([])
    fill = np.zeros(1, dtype=node_reader.dtype(x).numpy())
    return b.op("ConstantOfShape", shape, value=ir.tensor(fill))


def _body(x: ir.Value, exclusive: int, b: Builder, rank: int) -> ir.Graph:
    kind, shape = x.type, ir.Shape([None] * rank)
    total, term = (_value(b, f"{x.name}_{part}", kind, shape) for part in ("sum", "term"))
    add = ir.node("Add", [total, term], num_outputs=1)
    after = add.outputs[0]
    out = ir.node("Identity", [total if exclusive else after], num_outputs=1)
    for value in (after, out.outputs[0]):
        value.name, value.type, value.shape = b.fresh(f"{x.name}_sum"), kind, shape
    for inner in (add, out):
        inner.name = b.fresh(f"{b.node.name}_{inner.op_type}")
        inner.metadata_props.update(b.node.metadata_props)
    return ir.Graph([total, term], [after, out.outputs[0]], nodes=[add, out], name=b.fresh("running_sum"))


def _value(b: Builder, name: str, kind: ir.TypeProtocol | None, shape: ir.Shape) -> ir.Value:
    return ir.Value(name=b.fresh(name), type=kind, shape=shape)


DOWN: Rules = {("CumSum", 11): carried_sum}
UP: Rules = {}
