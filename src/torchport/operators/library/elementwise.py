"""Elementwise operators: floating-point parts, expm1, log1p, logaddexp, log_sigmoid, shifts, sums of truths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from torch import Tensor

from torchport.operators.composition import only_where
from torchport.operators.library.special_float64 import (
    as_tensor,
    floating,
    instead,
    of_number_and_tensor,
    of_tensor_and_number,
)
from torchport.operators.registration import composes, translates

# aten::fmax, aten::fmin, aten::copysign, aten::signbit, aten::hypot, aten::frexp, aten::nextafter
#
#     fmax(x, y)     = the other one where one is NaN           hypot(x, y) = m·√((x/m)² + (y/m)²), m = max(|x|, |y|)
#     copysign(x, y) = |x| or -|x|                              frexp(x) = x / 2ᵉ and e, the quotient in [½, 1)
#     nextafter(x, y) = x ± 2ᵉ⁻²⁴, e of frexp (e - 53 in float64), half of it down from a power of two
#
# ONNX sees no bits of a float. The sign of a zero shows in its reciprocal. An exponent is a logarithm rounded down,
# taken once more from what is left, for it may round to the next whole number; powers of two are exact.
#
# A NaN's sign is not seen: it counts as positive.
#
# Source of truth: PyTorch's answers, which are the C library's.


@composes("aten::fmax.default")
def fmax(self: Tensor, other: Tensor) -> Tensor:
    return _beside_nan(torch.maximum, self, other)


@composes("aten::fmin.default")
def fmin(self: Tensor, other: Tensor) -> Tensor:
    return _beside_nan(torch.minimum, self, other)


def _beside_nan(choose: Callable[[Tensor, Tensor], Tensor], self: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    x, y = torch.broadcast_tensors(self.to(dtype), other.to(dtype))
    if not dtype.is_floating_point:
        return choose(x, y)
    return choose(torch.where(torch.isnan(x), y, x), torch.where(torch.isnan(y), x, y))


@composes("aten::signbit.default")
def signbit(self: Tensor) -> Tensor:
    if self.dtype.is_floating_point:
        return (self < 0) | ((self == 0) & (1 / self < 0))
    return torch.zeros_like(self) if self.dtype == torch.bool else self < 0


@composes("aten::copysign.Tensor")
def copysign(self: Tensor, other: Tensor) -> Tensor:
    dtype = floating(self, other)
    size = torch.abs(self.to(dtype))
    return torch.where(signbit(other), -size, size)


@composes("aten::copysign.Scalar")
def copysign_number(self: Tensor, other: float) -> Tensor:
    return copysign(self, as_tensor(other, self))


@composes("aten::hypot.default")
def hypot(self: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    x, y = torch.abs(self.to(dtype)), torch.abs(other.to(dtype))
    largest = torch.maximum(x, y)
    scale = instead(largest, (largest == 0) | torch.isinf(largest), 1.0)
    result = scale * torch.sqrt((x / scale) ** 2 + (y / scale) ** 2)
    return torch.where(torch.isinf(x) | torch.isinf(y), torch.full_like(result, torch.inf), result)


@composes("aten::frexp.Tensor")
def frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    mantissa, exponent = _frexp(self.to(torch.float64))
    return mantissa.to(self.dtype), exponent.to(torch.int32)


def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of float64; the exponent is float64 too."""
    rest = torch.where(torch.isfinite(x), x, torch.zeros_like(x))
    total = torch.zeros_like(x)
    for _ in range(3):  # numbers below 2⁻¹⁰²² are brought up in two steps; the last one mends rounding
        size = instead(torch.abs(rest), rest == 0, 0.5)
        exponent = torch.clamp(torch.floor(torch.log2(size)) + 1, -1000, 1000)
        rest = rest * torch.pow(torch.full_like(x, 2.0), -exponent)
        total = total + exponent
    large = torch.abs(rest) >= 1
    rest, total = torch.where(large, rest / 2, rest), torch.where(large, total + 1, total)
    return torch.where(torch.isfinite(x), rest, x), total


@composes("aten::nextafter.default")
def nextafter(self: Tensor, other: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    if dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"nextafter of {dtype}")
    limits = torch.finfo(dtype)
    x, y = torch.broadcast_tensors(self.to(torch.float64), other.to(torch.float64))
    mantissa, exponent = _frexp(x)
    inward = ((x > 0) & (y < x)) | ((x < 0) & (y > x))
    exponent = torch.where(inward & (torch.abs(mantissa) == 0.5), exponent - 1, exponent)
    digits = {torch.float32: 24, torch.float64: 53}[dtype]
    lowest = {torch.float32: -149.0, torch.float64: -1074.0}[dtype]
    step = torch.pow(torch.full_like(x, 2.0), torch.clamp(exponent - digits, min=lowest))
    step = torch.where(x == 0, torch.full_like(x, 2.0**lowest), step)
    result = torch.where(y > x, x + step, x - step)
    result = torch.where(torch.isinf(x), torch.sign(x) * limits.max, result)
    result = torch.where(x == y, y, result)
    return torch.where(torch.isnan(x) | torch.isnan(y), x + y, result).to(dtype)


# aten::expm1
#
#     eˣ - 1 = 2t / (1 - t), t = tanh(x / 2)
#
# Torch's translation is Exp(x) - 1, of which nothing is left near zero: -1e-6 comes out as -1.01e-6. The identity keeps
# its digits there; Apertus's answer to its padding token rests on them. Far from zero t is one, and the difference is
# exact enough.
#
# Source of truth: PyTorch's answers, which are the C library's expm1.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::expm1.default")
def expm1(x: Any) -> Any:
    """Translate one call; `x` is the graph's value."""
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        x = op.Cast(x, to=ir.DataType.FLOAT)  # whole numbers give floats, as in PyTorch
        dtype = ir.DataType.FLOAT
    else:
        dtype = x.dtype
    half, one, two = (op.Constant(value=ir.tensor(number, dtype=dtype)) for number in (0.5, 1.0, 2.0))
    small = op.Less(op.Abs(x), one)
    t = op.Tanh(op.Mul(op.Where(small, x, half), half))  # a number in range where the other branch is taken
    near = op.Div(op.Mul(two, t), op.Sub(one, t))
    return op.Where(small, near, op.Sub(op.Exp(x), one))


# aten::log1p, aten::special_xlog1py
#
#     log(1 + x) = log(u) · x / (u - 1), u = 1 + x as it is rounded          xlog1py(x, y) = x · log(1 + y), 0 for x = 0
#
# Torch's translation is Log(x + 1), of which nothing is left near zero: 1e-6 comes out as 9.5e-7. What rounding took
# from u is given back by the quotient, which is one but for it (Kahan). Where u is one, x itself is the answer.
#
# log1p is a translation and not a composition, because torch takes losses apart into it only while it translates.
#
# Source of truth: PyTorch's answers, which are the C library's log1p.


@translates("aten::log1p.default")
def translated(x: Any) -> Any:
    """log(1 + x) in ONNX nodes; half floats by way of float32, and whole numbers give it."""
    if x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return nodes(x, x.dtype)
    result = nodes(op.Cast(x, to=ir.DataType.FLOAT), ir.DataType.FLOAT)
    return op.Cast(result, to=x.dtype) if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else result


def nodes(x: Any, dtype: ir.DataType) -> Any:
    """The same for float32 and float64."""
    zero, one, two = (op.Constant(value=ir.tensor(number, dtype=dtype)) for number in (0.0, 1.0, 2.0))
    u = op.Add(one, x)
    lost, out = op.Equal(u, one), op.Or(op.LessOrEqual(u, zero), op.IsInf(u))
    known = op.Where(op.Or(lost, out), two, u)  # a number in range where the other branches are taken
    near = op.Mul(op.Log(known), op.Div(x, op.Sub(known, one)))
    return op.Where(lost, x, op.Where(out, op.Log(u), near))


def log1p(x: Tensor) -> Tensor:
    """log(1 + x) of real numbers, in PyTorch."""
    x = x.to(floating(x))
    if x.dtype in (torch.float16, torch.bfloat16):
        return log1p(x.float()).to(x.dtype)
    u = 1 + x
    plain = (u == 1) | (u <= 0) | torch.isinf(u)
    known = instead(u, plain, 2.0)
    near = torch.log(known) * (x / (known - 1))
    return torch.where(u == 1, x, torch.where(plain, torch.log(u), near))


@composes("aten::special_xlog1py.default")
def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """x · log(1 + y)"""
    dtype = floating(x, y)
    x, y = torch.broadcast_tensors(x.to(dtype), y.to(dtype))
    return torch.where((x == 0) & ~torch.isnan(y), torch.zeros_like(x), x * log1p(y))


composes("aten::special_xlog1py.self_scalar")(of_number_and_tensor(xlog1py))
composes("aten::special_xlog1py.other_scalar")(of_tensor_and_number(xlog1py))


# aten::logaddexp2, aten::logaddexp
#
#     log(eˣ + eʸ) = m + log1p(e^-|x - y|), m = max(x, y)              the same with 2ˣ and the logarithm to base 2
#
# Torch's translation of the first takes the powers as they are, which overflow from 128 on. Equal infinities have no
# difference and are themselves the answer.
#
# Source of truth: PyTorch's answers.


@composes("aten::logaddexp.default")
def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    return _sum(self, other, 1.0)


@composes("aten::logaddexp2.default")
def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    return _sum(self, other, math.log(2))


def _sum(self: Tensor, other: Tensor, log_of_base: float) -> Tensor:
    if self.is_complex() or other.is_complex():
        return NotImplemented
    dtype = floating(self, other)
    x, y = torch.broadcast_tensors(self.to(dtype), other.to(dtype))
    largest = torch.maximum(x, y)
    difference = torch.where(torch.isinf(x) & (x == y), torch.zeros_like(x), torch.abs(x - y))
    result = largest + log1p(torch.exp(-difference * log_of_base)) / log_of_base
    return torch.where(torch.isinf(largest), largest, result)


# aten::log_sigmoid
#
#     log(1 / (1 + e⁻ˣ)) = min(x, 0) - log1p(e^-|x|)
#
# Torch's translation is Log(Sigmoid(x)): the sigmoid of -100 has lost its digits, and that of -104 is zero. Binary
# cross entropy of logits is taken apart into this operator.
#
# Source of truth: ATen's native/cpu/Activation.cpp.


@translates("aten::log_sigmoid.default")
def log_sigmoid(x: Any) -> Any:
    """Translate one call; half floats are computed in float32, as PyTorch does."""
    if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return op.Cast(_log_sigmoid(op.Cast(x, to=ir.DataType.FLOAT), ir.DataType.FLOAT), to=x.dtype)
    return _log_sigmoid(x, x.dtype)


def _log_sigmoid(x: Any, dtype: ir.DataType) -> Any:
    zero = op.Constant(value=ir.tensor(0.0, dtype=dtype))
    return op.Sub(op.Min(x, zero), nodes(op.Exp(op.Neg(op.Abs(x))), dtype))


# aten::__lshift__, aten::__rshift__, aten::bitwise_left_shift, aten::bitwise_right_shift
#
#     x << n = x · 2ⁿ        x >> n = floor(x / 2ⁿ)
#
# ONNX's BitShift takes integers without sign only, and torch's translation gives uint8 back as int8. Powers of two are
# exact: the product wraps around as bits fall off, and the shift to the right, which keeps the sign, is a quotient
# rounded down. It is taken in int64.


@translates(
    "aten::__lshift__.Scalar",
    "aten::__lshift__.Tensor",
    "aten::bitwise_left_shift.Tensor",
    "aten::bitwise_left_shift.Tensor_Scalar",
)
def left(self: Any, other: Any) -> Any:
    """Translate one call; `other` is a number or a value of the graph."""
    wide = op.Mul(op.Cast(self, to=ir.DataType.INT64), _power(other))
    return op.Cast(wide, to=self.dtype)


@translates(
    "aten::__rshift__.Scalar",
    "aten::__rshift__.Tensor",
    "aten::bitwise_right_shift.Tensor",
    "aten::bitwise_right_shift.Tensor_Scalar",
)
def right(self: Any, other: Any) -> Any:
    """Translate one call; integers are divided toward zero, so what is left over below zero is taken off first."""
    wide, power = op.Cast(self, to=ir.DataType.INT64), _power(other)
    rest = op.Mod(wide, power)  # of the divisor's sign: never below zero
    return op.Cast(op.Div(op.Sub(wide, rest), power), to=self.dtype)


def _power(exponent: Any) -> Any:
    if isinstance(exponent, int):
        return op.Constant(value_int=2**exponent)
    two = op.Constant(value_int=2)
    return op.Pow(two, op.Cast(exponent, to=ir.DataType.INT64))


# aten::atan2
#
#     arctan(y / x), and π more or less where x is negative: by the sign of y, which zero has as well
#
# Torch's translation gives -π for y = 0 and a negative x, where PyTorch gives π, and NaN for two zeros.
#
# Source of truth: C's atan2.


@composes("aten::atan2.default")
def atan2(self: Any, other: Any) -> Any:
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    y, x = self.to(dtype), other.to(dtype)
    below = torch.where(y == 0, 1 / y, y) < 0
    left = torch.where(x == 0, 1 / x, x) < 0
    slope = torch.atan(y / torch.where((x == 0) & (y == 0), torch.ones_like(x), x))
    return torch.where(left, torch.where(below, slope - math.pi, slope + math.pi), slope)


# aten::add of truths
#
#     a + b = a or b
#
# ONNX's Add takes numbers only, and torch's translation does not look at the type.


def _are_truths(self: Any, other: Any, alpha: Any = 1) -> bool:
    return self.dtype is torch.bool and (isinstance(other, bool) or getattr(other, "dtype", None) is torch.bool)


@composes("aten::add.Tensor", "aten::add.Scalar")
@only_where(_are_truths)
def add_truths(self: Any, other: Any, alpha: Any = 1) -> Any:
    other = other if isinstance(other, Tensor) else torch.full((), other, dtype=torch.bool, device=self.device)
    return torch.logical_or(self, other if alpha else torch.zeros_like(other))
