"""DepthToSpace: mode ``CRD`` (PyTorch's pixel_shuffle) came in 11; it is a Reshape, a Transpose and a Reshape."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def column_row_depth(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """(N, C, H, W) as (N, C/s², s, s, H, W), turned to (N, C/s², H, s, W, s), read as (N, C/s², H·s, W·s)."""
    if node_reader.text(node, "mode", "DCR") == "DCR":
        return None
    x, s = node_reader.required(node, 0), node_reader.integer(node, "blocksize", 1)
    channels = node_reader.static_dim(x, 1)
    if channels is None:
        raise Refusal("mode 'CRD' came in opset 11, and the number of channels is not known")
    n, h, w = (b.size(x, axis) for axis in (0, 2, 3))
    depth, block = b.ints([channels // (s * s)]), b.ints([s])
    split = b.op("Reshape", x, b.op("Concat", n, depth, block, block, h, w, axis=0))
    turned = b.op("Transpose", split, perm=[0, 1, 4, 2, 5, 3])
    sizes = [n, depth, b.op("Mul", h, block), b.op("Mul", w, block)]
    return [b.op("Reshape", turned, b.op("Concat", *sizes, axis=0))]


DOWN: Rules = {("DepthToSpace", 11): column_row_depth}
UP: Rules = {}
