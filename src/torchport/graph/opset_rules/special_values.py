"""IsNaN (9), IsInf (10), Sign (9) and Round (11) by comparisons; each exact, NaN and infinities included."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules


def is_nan(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Every number is below 1 or above 0; NaN alone is neither."""
    x = node_reader.required(node, 0)
    below, above = b.op("Less", x, b.scalar_like(1, x)), b.op("Greater", x, b.scalar_like(0, x))
    return [b.op("Not", b.op("Or", below, above))]


def is_inf(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Infinite is beyond the largest finite number."""
    x = node_reader.required(node, 0)
    largest = float(np.finfo(node_reader.dtype(x).numpy()).max)
    up, down = node_reader.integer(node, "detect_positive", 1), node_reader.integer(node, "detect_negative", 1)
    above = b.op("Greater", x, b.scalar_like(largest, x))
    below = b.op("Less", x, b.scalar_like(-largest, x))
    if up and down:
        return [b.op("Or", above, below)]
    if not up and not down:
        return [b.op("And", above, below)]
    return [b.op("Identity", above if up else below)]


def sign(node: ir.Node, b: Builder) -> list[ir.Value]:
    """(x > 0) - (x < 0)."""
    x = node_reader.required(node, 0)
    kind, zero = node_reader.dtype(x), b.scalar_like(0, x)
    above, below = b.op("Greater", x, zero), b.op("Less", x, zero)
    return [b.op("Sub", b.cast(above, kind), b.cast(below, kind))]


def half_to_even(node: ir.Node, b: Builder) -> list[ir.Value]:
    """f = floor(x), d = x - f: f below one half, f + 1 above it, and 2·ceil(f / 2), which is even, at one half.

    Infinities have d = NaN, for which no comparison holds, and 2·ceil(inf / 2) = inf.
    """
    x = node_reader.required(node, 0)
    half = b.scalar_like(0.5, x)
    floor = b.op("Floor", x)
    rest = b.op("Sub", x, floor)
    even = b.op("Mul", b.op("Ceil", b.op("Mul", floor, half)), b.scalar_like(2, x))
    upper = b.op("Where", b.op("Greater", rest, half), b.op("Add", floor, b.scalar_like(1, x)), even)
    return [b.op("Where", b.op("Less", rest, half), floor, upper)]


DOWN: Rules = {("IsNaN", 9): is_nan, ("IsInf", 10): is_inf, ("Sign", 9): sign, ("Round", 11): half_to_even}
UP: Rules = {}
