"""Reshape: ``allowzero`` came in 14; before, a 0 always copies the input's dimension at that place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport import tensors
from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def zero_by_inference(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """With ``allowzero`` a 0 means no elements. Written as -1 it comes out as 0 too: 0 elements / (the rest) = 0.

    PyTorch's exporter sets ``allowzero`` on nearly every Reshape, so shapes computed at run time are carried over
    as well: ``shape - (shape == 0)`` turns a 0 into -1. Two zeros at once would be two -1, which engines refuse.
    """
    if not node_reader.integer(node, "allowzero", 0):
        return None
    x, shape = node_reader.required(node, 0), node_reader.required(node, 1)
    known = node_reader.constant(shape)
    if known is not None:
        return [b.op("Reshape", x, _constant_shape(known, shape, b))]
    zero = b.cast(b.op("Equal", shape, b.ints([0])), ir.DataType.INT64)
    return [b.op("Reshape", x, b.op("Sub", shape, zero))]


def _constant_shape(known: tensors.Array, shape: ir.Value, b: Builder) -> ir.Value:
    zeros = int(np.count_nonzero(known == 0))
    if zeros > 1:
        raise Refusal("two dimensions of its shape are 0")
    return b.ints([int(v) - (v == 0) for v in known]) if zeros else shape


DOWN: Rules = {("Reshape", 14): zero_by_inference}
UP: Rules = {}
