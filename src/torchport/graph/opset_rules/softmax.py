"""Softmax, LogSoftmax and Hardmax: over one axis since 13; before, over all axes from ``axis`` on, taken as one."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal

_OPS = ("Softmax", "LogSoftmax", "Hardmax")


def over_flattened_tail(node: ir.Node, b: Builder) -> list[ir.Value]:
    """With the axis last, the tail is that axis alone and both mean the same; otherwise it is swapped there."""
    x = node_reader.required(node, 0)
    rank = node_reader.rank(x)
    axis = node_reader.non_negative([node_reader.integer(node, "axis", -1)], rank)[0]
    if rank == 0:
        raise Refusal("its input is a scalar")
    if axis == rank - 1:
        return [b.op(node.op_type, x, axis=axis)]
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    swapped = b.op("Transpose", x, perm=order)
    return [b.op("Transpose", b.op(node.op_type, swapped, axis=rank - 1), perm=order)]


def over_one_axis(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The flattened tail is one axis after Flatten; the shape is put back afterwards."""
    x, axis = node_reader.required(node, 0), node_reader.integer(node, "axis", 1)
    if x.shape is not None and axis in (-1, len(x.shape) - 1):
        return [b.op(node.op_type, x, axis=-1)]
    rows = b.op("Flatten", x, axis=axis)
    return [b.op("Reshape", b.op(node.op_type, rows, axis=-1), b.op("Shape", x))]


DOWN: Rules = {(op, 13): over_flattened_tail for op in _OPS}
UP: Rules = {(op, 13): over_one_axis for op in _OPS}
