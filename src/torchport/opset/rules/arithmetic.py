"""Rules for Pow, Mod, Clip, comparisons, IsNaN, IsInf, Sign, Round, Cast and quantization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport import tensors
from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules
from torchport.opset.rules.reductions import larger, smaller

# Pow: base and exponent may differ in dtype since 12; before, the exponent is cast, where that loses nothing.


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


# Mod: since 28 floats may be taken modulo with the sign of the divisor (fmod=0); before, only as C's fmod.


def integers_only(node: ir.Node, b: Builder) -> None:
    if (
        not node_reader.integer(node, "fmod", 0)
        and node_reader.dtype(node_reader.required(node, 0)) in node_reader.FLOATS
    ):
        raise Refusal("fmod=0 of floats came in opset 28")


# Clip: bounds became inputs in 11, integers came in 12.


def integers_by_choice(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """min(max(x, low), high), each a choice between two integers."""
    x, low, high = node_reader.required(node, 0), node_reader.input_at(node, 1), node_reader.input_at(node, 2)
    if node_reader.dtype(x) in node_reader.FLOATS:
        return None
    x = x if low is None else larger(b, x, low)
    x = x if high is None else smaller(b, x, high)
    return [b.op("Identity", x)]


def bounds_to_attributes(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Constant bounds become float32 attributes; bounds computed at run time become Max and Min, as the schema says."""
    x, low, high = node_reader.required(node, 0), node_reader.input_at(node, 1), node_reader.input_at(node, 2)
    bounds = [None if v is None else node_reader.constant(v) for v in (low, high)]
    if any(array is None and v is not None for array, v in zip(bounds, (low, high), strict=True)):
        x = x if low is None else b.op("Max", x, low)
        x = x if high is None else b.op("Min", x, high)
        return [b.op("Identity", x)]
    numbers = [None if array is None else _float32(array) for array in bounds]
    return [b.op("Clip", x, min=numbers[0], max=numbers[1])]


def _float32(array: tensors.Array) -> float:
    number = float(np.float32(array.reshape(-1)[0]))
    if number != array.reshape(-1)[0]:
        raise Refusal("a bound is no float32")
    return number


def bounds_to_inputs(node: ir.Node, b: Builder) -> list[ir.Value]:
    x = node_reader.required(node, 0)
    low, high = node_reader.attribute(node, "min"), node_reader.attribute(node, "max")
    inputs = [None if bound is None else b.scalar_like(float(bound), x) for bound in (low, high)]
    return [b.op("Clip", x, *inputs)]


# Equal of floats (11), Greater and Less of integers (9).


def equal(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """x == y: neither below, nor above, nor NaN. Lesser integers by way of int64, which holds them."""
    x, y = node_reader.required(node, 0), node_reader.required(node, 1)
    kind = node_reader.dtype(x)
    if kind in (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64):
        return None
    if kind in node_reader.SMALL_INTS:
        return [b.op("Equal", *(b.cast(v, ir.DataType.INT64) for v in (x, y)))]
    if kind not in node_reader.FLOATS:
        raise Refusal(f"{kind.name.lower()} came after opset 10")
    differ = b.op("Or", b.op("Less", x, y), b.op("Greater", x, y))
    nan = b.op("Or", b.op("IsNaN", x), b.op("IsNaN", y))
    return [b.op("Not", b.op("Or", differ, nan))]


def integers_as_float64(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """float64 holds every integer of 32 bits, so the order is the same."""
    x, y = node_reader.required(node, 0), node_reader.required(node, 1)
    kind = node_reader.dtype(x)
    if kind in node_reader.FLOATS:
        return None
    if kind not in node_reader.SMALL_INTS:
        raise Refusal(f"{kind.name.lower()} came in opset 9")
    return [b.op(node.op_type, *(b.cast(v, ir.DataType.DOUBLE) for v in (x, y)))]


# IsNaN (9), IsInf (10), Sign (9) and Round (11) by comparisons; each exact, NaN and infinities included.


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


# Cast and CastLike: ``saturate`` (19) and ``round_mode`` (24) bear on 8-bit floats alone, so others drop them.


def _is_saturated_fnuz(node: ir.Node) -> bool:
    return node_reader.dtype(node.outputs[0]).name.endswith("FNUZ") and bool(node_reader.integer(node, "saturate", 1))


def infinity_unchanged(node: ir.Node, b: Builder) -> None:
    """Since 24 infinity saturates to the largest FNUZ number; before, it became NaN."""
    if _is_saturated_fnuz(node):
        raise Refusal("what infinity becomes as an 8-bit float changed in opset 24")


def options_of_24(node: ir.Node, b: Builder) -> None:
    infinity_unchanged(node, b)
    without_float8_options(node, b)


def without_float8_options(node: ir.Node, b: Builder) -> None:
    if "FLOAT8" not in node_reader.dtype(node.outputs[0]).name:
        node.attributes.pop("round_mode", None)
        if b.opset < 19:
            node.attributes.pop("saturate", None)


_OPS = ("Cast", "CastLike")


# QuantizeLinear and DequantizeLinear: per axis since 13, blocked with a chosen dtype since 21, precision since 23.


def precision_of_scale(node: ir.Node, b: Builder) -> None:
    """``precision`` and the dtype dequantized to may be written out, as long as they are those of the scale."""
    name = "precision" if node.op_type == "QuantizeLinear" else "output_dtype"
    asked = node_reader.integer(node, name, 0)
    if asked and asked != int(node_reader.dtype(node_reader.required(node, 1))):
        raise Refusal(f"{name} other than the dtype of its scale came in opset 23")
    node.attributes.pop(name, None)


def dtype_by_zero_point(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """Before 21 the zero point alone says which dtype to quantize to, so one of zeros is put there."""
    asked = node_reader.integer(node, "output_dtype", 0)
    if not asked or node_reader.input_at(node, 2) is not None:
        node.attributes.pop("output_dtype", None)
        return None
    if node_reader.integer(node, "block_size", 0):
        raise Refusal("blocked quantization came in opset 21")
    x, scale = node_reader.required(node, 0), node_reader.required(node, 1)
    dims = node_reader.static_dims(scale)
    if dims is None:
        raise Refusal("the shape of its scale is not known")
    zeros = b.constant(np.zeros(dims, dtype=ir.DataType(asked).numpy()))
    given = {name: node_reader.attribute(node, name) for name in ("axis", "saturate")}
    return [b.op("QuantizeLinear", x, scale, zeros, **given)]


def one_scale(node: ir.Node, b: Builder) -> None:
    if node_reader.rank(node_reader.required(node, 1)) != 0:
        raise Refusal("a scale for each channel came in opset 13")
    node.attributes.pop("axis", None)


DOWN: Rules = {
    ("Pow", 12): exponent_of_same_type,
    ("Mod", 28): integers_only,
    ("Clip", 12): integers_by_choice,
    ("Clip", 11): bounds_to_attributes,
    ("Equal", 11): equal,
    ("Greater", 9): integers_as_float64,
    ("Less", 9): integers_as_float64,
    ("IsNaN", 9): is_nan,
    ("IsInf", 10): is_inf,
    ("Sign", 9): sign,
    ("Round", 11): half_to_even,
    **{(op, 24): options_of_24 for op in _OPS},
    **{(op, 19): without_float8_options for op in _OPS},
    ("QuantizeLinear", 23): precision_of_scale,
    ("DequantizeLinear", 23): precision_of_scale,
    ("QuantizeLinear", 21): dtype_by_zero_point,
    ("QuantizeLinear", 13): one_scale,
    ("DequantizeLinear", 13): one_scale,
}
UP: Rules = {
    ("Clip", 11): bounds_to_inputs,
    **{(op, 24): infinity_unchanged for op in _OPS},
}
