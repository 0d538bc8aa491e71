"""Pow: base and exponent may differ in dtype since 12; before, the exponent is cast, where that loses nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


def exponent_of_same_type(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    base, exponent = node_reader.required(node, 0), node_reader.required(node, 1)
    kind, other = node_reader.dtype(base), node_reader.dtype(exponent)
    if kind not in node_reader.FLOATS:
        raise Refusal("powers of integers came in opset 12")
    if kind == other:
        return None
    known = node_reader.constant(exponent)
    if known is not None:
        cast = known.astype(kind.numpy())
        if not np.array_equal(cast.astype(np.float64), known.astype(np.float64), equal_nan=True):
            raise Refusal("its exponent does not fit the dtype of its base")
        return [b.op("Pow", base, b.constant(cast))]
    if not np.can_cast(other.numpy(), kind.numpy(), casting="safe"):
        raise Refusal("its exponent, computed at run time, does not fit the dtype of its base")
    return [b.op("Pow", base, b.cast(exponent, kind))]


DOWN: Rules = {("Pow", 12): exponent_of_same_type}
UP: Rules = {}
