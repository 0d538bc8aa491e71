"""The gamma function, its logarithm, derivatives and incomplete integrals."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.special_float64 import (
    floating,
    in_double,
    instead,
    is_whole,
    nan_where,
    of_number_and_tensor,
    of_tensor_and_number,
    polynomial,
    sin_pi,
)
from torchport.operators.registration import composes

# aten::lgamma, aten::mvlgamma, aten::digamma, aten::polygamma, aten::special_zeta
#
#     log Γ(x) = Stirling(x + 10) - log(x·(x + 1)·…·(x + 9))          log Γ(x) = log(π / |sin πx|) - log Γ(1 - x)
#     ψ(x)     = Stirling'(x + 10) - Σ 1 / (x + k)                      ψ(x) = ψ(1 - x) - π / tan πx
#     ζ(s, q)  = Σ (q + k)⁻ˢ for k < 10, then Euler and Maclaurin's series
#     ψₙ(x)    = (-1)ⁿ⁺¹ · n! · ζ(n + 1, x)
#
# ONNX has none of them. Stirling's series is exact to float64 from ten on; the step by ten brings every positive number
# there, and the reflection every negative one. ζ takes a whole s to a negative q with the sum over all whole steps:
#
#     ζ(s, q) = ζ(s, r) + (-1)ˢ · (ζ(s, 1 - r) - ζ(s, 1 - q))           r = q - floor(q)
#
# Close to 1 and 2, where log Γ is zero, float64 keeps sixteen digits after the point and no more.
#
# Source of truth: ATen's native/Math.h for the poles: ψ(±0) = ∓∞, ψ is NaN at other poles, ψ₁ there is what π's
# rounding makes of it, and ζ is ∞ at the poles, NaN for s < 1 and for a negative q with a broken s.

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B₂, B₄, …
_STEPS = 10


def log_gamma(x: Tensor) -> Tensor:
    """log |Γ(x)| of float64."""
    mirrored = x < 0.5
    result = _log_gamma_positive(torch.where(mirrored, 1 - x, x))
    sine = torch.abs(sin_pi(instead(x, torch.isinf(x), 0.0)))
    result = torch.where(mirrored, math.log(math.pi) - torch.log(sine) - result, result)
    result = torch.where((x == 1) | (x == 2), torch.zeros_like(x), result)
    return torch.where(torch.isinf(x), torch.full_like(x, torch.inf), result)


def _log_gamma_positive(x: Tensor) -> Tensor:
    small = x < _STEPS
    start = instead(x, ~small, 1.0)
    product = start
    for step in range(1, _STEPS):
        product = product * (start + step)
    far = torch.where(small, x + _STEPS, x)
    series = polynomial(1 / (far * far), [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]) / far
    stirling = (far - 0.5) * torch.log(far) - far + math.log(2 * math.pi) / 2 + series
    return torch.where(small, stirling - torch.log(product), stirling)


def _sum_of_powers(x: Tensor, exponent: Tensor | int) -> Tensor:
    """Of x, x + 1, …, x + 9. Added one by one: ONNX Runtime's ReduceSum gives an empty tensor a wrong shape."""
    total = torch.pow(x, exponent)
    for step in range(1, _STEPS):
        total = total + torch.pow(x + step, exponent)
    return total


@composes("aten::mvlgamma.default", "aten::special_multigammaln.default")
def mvlgamma(self: Tensor, p: int) -> Tensor:
    """log π · p(p - 1)/4 + Σ log Γ(x - k/2), k < p"""
    x = self.to(torch.float64)
    total = sum((log_gamma(x - k / 2) for k in range(p)), torch.full_like(x, math.log(math.pi) * p * (p - 1) / 4))
    return total.to(floating(self))


def digamma(x: Tensor) -> Tensor:
    """ψ(x) of float64."""
    negative = x < 0
    start = torch.where(negative, 1 - x, x)
    small = start < _STEPS
    near = instead(start, ~small, 1.0)
    steps = -_sum_of_powers(near, -1)
    far = torch.where(small, start + _STEPS, start)
    square = 1 / (far * far)
    series = square * polynomial(square, [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)])
    result = torch.log(far) - 0.5 / far - series + torch.where(small, steps, torch.zeros_like(x))
    turn = torch.pi * (x - torch.trunc(x))
    reflected = result - torch.pi * torch.cos(turn) / torch.sin(turn)
    result = torch.where(negative, nan_where(is_whole(x), reflected), result)
    return torch.where(x == 0, -1 / x, result)


def zeta(s: Tensor, q: Tensor) -> Tensor:
    """Hurwitz's ζ(s, q) of float64."""
    s, q = torch.broadcast_tensors(s, q)
    result = _zeta(s, q)
    result = torch.where((s == 1) | ((q <= 0) & is_whole(q)), torch.full_like(result, torch.inf), result)
    return nan_where((s < 1) | ((q < 0) & ~is_whole(q) & ~is_whole(s)), result)


def _zeta(s: Tensor | int, q: Tensor) -> Tensor:
    """ζ(s, q) for s > 1; any number at all at the poles."""
    above, below = q - torch.floor(q), torch.ceil(q) - q  # from the poles around
    given, upper, lower, mirrored = _zeta_positive(s, torch.stack([q, above + 1, below + 1, 1 - q])).unbind(0)
    odd = s % 2 if isinstance(s, int) else s - 2 * torch.floor(s / 2)
    nearest = torch.pow(above, -s) + (1 - 2 * odd) * torch.pow(below, -s)  # alone, for they may cancel
    return torch.where(q < 0, nearest + (upper + (1 - 2 * odd) * (lower - mirrored)), given)


def _zeta_positive(s: Tensor | int, q: Tensor) -> Tensor:
    q = instead(q, q <= 0, 1.0)
    s = s if isinstance(s, int) else instead(s, s <= 1, 2.0)
    end = q + _STEPS
    bounded = s if isinstance(s, int) else torch.clamp(s, max=1e4)  # above, endˢ is infinite in any case
    factors: list[Any] = []
    factor: Any = bounded
    for k, b in enumerate(_BERNOULLI, 1):
        factors.append(factor * (b / math.factorial(2 * k)))
        factor = factor * ((bounded + (2 * k - 1)) * (bounded + 2 * k))  # s·(s + 1)·…
    series = factors[-1] + torch.zeros_like(end)
    for factor in reversed(factors[:-1]):
        series = series / (end * end) + factor
    return _sum_of_powers(q, -s) + torch.pow(end, -s) * (end / (s - 1) + 0.5 + series / end)


@composes("aten::polygamma.default", "aten::special_polygamma.default")
def polygamma(n: int, self: Tensor) -> Tensor:
    """The n-th derivative of ψ."""
    if n == 0:
        return in_double(digamma)(self)
    x = self.to(floating(self))
    if n == 1:
        return _trigamma(x).to(x.dtype)
    factorial = float(math.factorial(n)) if n <= 170 else math.inf
    scale = factorial if factorial <= torch.finfo(x.dtype).max else math.inf  # as n! is in the type itself
    result = _zeta(n + 1, x.to(torch.float64)).to(x.dtype)
    result = torch.where((x <= 0) & is_whole(x), torch.full_like(x, torch.inf), result)
    return (scale if n % 2 else -scale) * result


def _trigamma(x: Tensor) -> Tensor:
    """ψ₁(x) = π² / sin² πx - ψ₁(1 - x) below a half, πx rounded as PyTorch does: it tells what comes out at a pole."""
    wide = x.to(torch.float64)
    mirrored = x < 0.5
    sine = torch.sin((torch.pi * x).to(torch.float64))
    start = torch.where(mirrored, 1 - wide, wide)
    result = _zeta_positive(2, start)
    result = torch.where(mirrored, torch.pi**2 / (sine * sine) - result, result)
    return torch.where(wide == torch.inf, torch.zeros_like(wide), result)


# Under torch.special's other names too: torch.export keeps the name that was called (native_functions.yaml).
composes("aten::lgamma.default", "aten::special_gammaln.default")(in_double(log_gamma))
composes("aten::digamma.default", "aten::special_digamma.default", "aten::special_psi.default")(in_double(digamma))
composes("aten::special_zeta.default")(in_double(zeta))
composes("aten::special_zeta.self_scalar")(of_number_and_tensor(in_double(zeta)))
composes("aten::special_zeta.other_scalar")(of_tensor_and_number(in_double(zeta)))


# aten::igamma, aten::igammac: Γ's integral up to x and from x on, each divided by Γ(a)
#
#     P(a, x) = xᵃ·e⁻ˣ / Γ(a + 1) · (1 + x/(a + 1)·(1 + x/(a + 2)·(…)))           for x ≤ 1
#     xᵃ·e⁻ˣ / Γ(a) · ∫ exp(±a·w - x·(e^±w - 1)) dw, w from 0 to ∞                otherwise
#
# The integral is Q(a, x) with the upper sign, taken for x > a, and P(a, x) with the lower; the other is one less it.
# The integrand falls from w = 0 on. With w = s·exp(u - e⁻ᵘ), s the width of its fall, it is smooth and dies out at both
# ends faster than any power, where sums over equal steps of u converge geometrically (Takahasi and Mori's double
# exponential formula). PyTorch's series and continued fractions go on until they have converged, which a graph cannot.
#
# Source of truth: ATen's native/Math.h for the edges.

_FIRST, _STEP, _POINTS = -4.0, 0.08, 106  # of u
_TERMS = 20


def igamma(a: Tensor, x: Tensor) -> Tensor:
    """P(a, x) of float64."""
    a, x = torch.broadcast_tensors(a, x)
    known, is_lower = _smaller(a, x)
    return _edges(a, x, torch.where(is_lower, known, 1 - known), at_zero=0.0)


def igammac(a: Tensor, x: Tensor) -> Tensor:
    """Q(a, x) of float64."""
    a, x = torch.broadcast_tensors(a, x)
    known, is_lower = _smaller(a, x)
    return _edges(a, x, torch.where(is_lower, 1 - known, known), at_zero=1.0)


def _smaller(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P or Q for finite numbers above zero, and whether it is P."""
    unusual = (a <= 0) | (x <= 0) | torch.isinf(a) | torch.isinf(x)
    a, x = instead(a, unusual, 1.0), instead(x, unusual, 1.0)
    factor = a * torch.log(x) - x - log_gamma(a)
    near, upper = x <= 1, (x > 1) & (x > a)
    inner = torch.exp(factor) / a * _series(a, instead(x, ~near, 1.0))
    outer = torch.exp(factor) * _integral(a, instead(x, near, 1.0), upper)
    return torch.where(near, inner, outer), ~upper


def _series(a: Tensor, x: Tensor) -> Tensor:
    total = torch.ones_like(x)
    for k in reversed(range(1, _TERMS)):
        total = 1 + total * x / (a + k)
    return total


def _integral(a: Tensor, x: Tensor, upper: Tensor) -> Tensor:
    u = _FIRST + _STEP * torch.arange(_POINTS, dtype=x.dtype, device=x.device)
    places, weights = torch.exp(u - torch.exp(-u)), _STEP * (1 + torch.exp(-u))
    width = 1 / (torch.abs(x - a) + torch.sqrt(x))
    w = width.unsqueeze(-1) * places
    signed = torch.where(upper.unsqueeze(-1), w, -w)
    heights = torch.exp(a.unsqueeze(-1) * signed - x.unsqueeze(-1) * (torch.exp(signed) - 1))
    return torch.sum(heights * w * weights, dim=-1)


def _edges(a: Tensor, x: Tensor, result: Tensor, at_zero: float) -> Tensor:
    """`at_zero` is the value for x = 0; the other end's is one less it."""
    start, end = torch.full_like(x, at_zero), torch.full_like(x, 1 - at_zero)
    result = torch.where((x == 0) | torch.isinf(a), start, result)
    result = torch.where((a == 0) | (torch.isinf(x) & ~torch.isinf(a)), end, result)
    undefined = (x < 0) | (a < 0) | ((a == 0) & ~(x > 0)) | (torch.isinf(a) & torch.isinf(x))
    return nan_where(undefined, result)


# Under torch.special's other names too: torch.export keeps the name that was called (native_functions.yaml).
composes("aten::igamma.default", "aten::special_gammainc.default")(in_double(igamma))
composes("aten::igammac.default", "aten::special_gammaincc.default")(in_double(igammac))
