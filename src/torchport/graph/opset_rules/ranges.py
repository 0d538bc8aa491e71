"""Range: came in 11, with ``stash_type`` in 27 for the half-precision types that came with it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal

_WHOLE = (ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64)


def without_stash(node: ir.Node, b: Builder) -> None:
    """``stash_type`` bears on float16 and bfloat16 alone, which came with it: those are refused by their type."""
    node.attributes.pop("stash_type", None)


def count_the_places(node: ir.Node, b: Builder) -> list[ir.Value]:
    """start + step · [0, 1, ..n-1] with n = max(ceil((limit - start) / step), 0).

    [0, 1, ..n-1] are the places of the non-zeros among n ones. Only for integers, where every step is exact, and
    a constant step, whose sign is known.
    """
    start, limit, delta = (node_reader.required(node, i) for i in range(3))
    kind = node_reader.dtype(start)
    if kind not in _WHOLE:
        raise Refusal(f"it came in opset 11, and of {kind.name.lower()} it cannot be rewritten exactly")
    step = node_reader.constant_ints(delta, "its step")[0]
    known = [node_reader.constant(start), node_reader.constant(limit)]
    if known[0] is not None and known[1] is not None:
        return [b.constant(np.arange(int(known[0]), int(known[1]), step), kind.numpy())]
    first, last = (b.cast(v, ir.DataType.INT64) for v in (start, limit))
    places = _first_numbers(_count(first, last, step, b), b)
    numbers = b.op("Add", first, b.op("Mul", places, b.constant(step, np.int64)))
    return [b.cast(numbers, kind)]


def _count(first: ir.Value, last: ir.Value, step: int, b: Builder) -> ir.Value:
    """Integer division cuts towards zero, so a span below zero comes out as zero or less, and is cut to zero."""
    span = b.op("Sub", last, first) if step > 0 else b.op("Sub", first, last)
    size = abs(step)
    count = b.op("Div", b.op("Add", span, b.constant(size - 1, np.int64)), b.constant(size, np.int64))
    some = b.op("Greater", count, b.constant(0, np.int64))
    return b.op("Mul", count, b.cast(some, ir.DataType.INT64))


def _first_numbers(count: ir.Value, b: Builder) -> ir.Value:
    shape = b.op("Reshape", count, b.ints([1]))
    ones = b.op("ConstantOfShape", shape, value=ir.tensor(np.ones(1, dtype=np.int64)))
    return b.squeeze(b.op("NonZero", ones), [0])


DOWN: Rules = {("Range", 27): without_stash, ("Range", 11): count_the_places}
UP: Rules = {}
