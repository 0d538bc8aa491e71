"""Trilu (14): a comparison of row and column numbers chooses between the input and zero."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules

_SMALL = 1 << 16  # elements of a mask worth storing


def choose_by_place(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Keep x[.., i, j] where j >= i + k (upper) or j <= i + k (lower)."""
    x = node_reader.required(node, 0)
    keep = _known_mask(node, x, b) or _mask(node, x, b)
    if node_reader.dtype(x) == ir.DataType.BOOL:
        return [b.op("And", x, keep)]
    return [b.op("Where", keep, x, b.scalar_like(0, x))]


def _known_mask(node: ir.Node, x: ir.Value, b: Builder) -> ir.Value | None:
    given = node_reader.input_at(node, 1)
    k = node_reader.constant(given) if given is not None else np.zeros((), dtype=np.int64)
    rank = node_reader.rank(x)
    height, width = node_reader.static_dim(x, rank - 2), node_reader.static_dim(x, rank - 1)
    if k is None or height is None or width is None or height * width > _SMALL:
        return None
    ones = np.ones((height, width), dtype=bool)
    first = int(k.reshape(-1)[0])
    return b.constant(np.triu(ones, first) if node_reader.integer(node, "upper", 1) else np.tril(ones, first))


def _mask(node: ir.Node, x: ir.Value, b: Builder) -> ir.Value:
    rank, k = node_reader.rank(x), node_reader.input_at(node, 1)
    rows, columns = (_numbers(x, axis, b) for axis in (rank - 2, rank - 1))
    border = b.unsqueeze(rows, [1])
    border = border if k is None else b.op("Add", border, b.op("Reshape", k, b.ints([1])))
    outside = "Less" if node_reader.integer(node, "upper", 1) else "Greater"
    return b.op("Not", b.op(outside, columns, border))


def _numbers(x: ir.Value, axis: int, b: Builder) -> ir.Value:
    size = b.squeeze(b.size(x, axis), [0])
    return b.op("Range", b.constant(0, np.int64), size, b.constant(1, np.int64))


DOWN: Rules = {("Trilu", 14): choose_by_place}
UP: Rules = {}
