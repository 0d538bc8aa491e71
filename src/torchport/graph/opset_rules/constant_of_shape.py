"""ConstantOfShape (9): a constant where the shape is known, Expand of a scalar where it is not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules

_SMALL = 1 << 16  # elements worth storing


def expanded_scalar(node: ir.Node, b: Builder) -> list[ir.Value]:
    given = node_reader.attribute(node, "value")
    fill = np.zeros(1, dtype=np.float32) if given is None else given.numpy()
    shape = node_reader.required(node, 0)
    known = node_reader.constant(shape)
    if known is not None and np.prod(known) <= _SMALL:
        return [b.constant(np.full(known, fill.reshape(-1)[0], dtype=fill.dtype))]
    return [b.op("Expand", b.constant(fill.reshape(())), shape)]


DOWN: Rules = {("ConstantOfShape", 9): expanded_scalar}
UP: Rules = {}
