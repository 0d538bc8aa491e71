"""aten::fmax, aten::fmin, aten::copysign, aten::signbit, aten::hypot, aten::frexp, aten::nextafter

    fmax(x, y)     = the other one where one is NaN           hypot(x, y) = m·√((x/m)² + (y/m)²), m = max(|x|, |y|)
    copysign(x, y) = |x| or -|x|                              frexp(x) = x / 2ᵉ and e, the quotient in [½, 1)
    nextafter(x, y) = x ± 2ᵉ⁻²⁴, e of frexp (e - 53 in float64), half of it down from a power of two

ONNX sees no bits of a float. The sign of a zero shows in its reciprocal. An exponent is a logarithm rounded down, taken
once more from what is left, for it may round to the next whole number; powers of two are exact.

A NaN's sign is not seen: it counts as positive.

Source of truth: PyTorch's answers, which are the C library's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchport.operators.library.special_numbers import as_tensor, floating, instead
from torchport.operators.registering import composes


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
