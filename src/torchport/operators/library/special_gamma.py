"""The gamma function, its logarithm, derivatives and incomplete integrals; the error function and its inverses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchport.operators.composition import only_where
from torchport.operators.library.elementwise import log1p
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


# aten::erfc, aten::erfinv, aten::special_{erfcx, log_ndtr, ndtri}; aten::erf, aten::special_ndtr of float64
#
#     erfcx(x) = exp(x²)·erfc(x)                               erf(x) = 2/√π · Σ (-1)ᵏ·x²ᵏ⁺¹ / (k!·(2k + 1)) for |x| < 1
#     ndtr(x)  = erfc(-x/√2) / 2                               log_ndtr(x) = log(erfcx(-x/√2) / 2) - x²/2 for x < -1
#     ndtri(p) = √2 · erfinv(2p - 1)                           ndtr(x) = (1 + erf(x/√2)) / 2, as PyTorch computes it
#
# Torch's erfc is 1 - Erf(x), of which nothing is left from 4 on, nor of log_ndtr, and its erfcx overflows. All rest on
# erfcx here, which is smooth: (1 + 2x)·erfcx(x) as a polynomial of (x - 3.75) / (x + 3.75), interpolated with mpmath at
# Chebyshev's points. The inverses are Newton's steps from Winitzki's formula, right to 0.2 %; the steps of the tail are
# taken on log erfc, so that they know 1 - |y| and not y alone. ONNX Runtime has no Erf of float64.
#
# Source of truth: PyTorch's answers; DLMF 7.

_ERF = [2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(20)]
_MIDDLE = 3.75  # of the axis, where the polynomial's argument is zero
_STEPS = 3  # each doubles the digits, of which there are three
# fmt: off
_ERFCX = (
    1.2375126308378275, -0.14024059858554697, 0.003585415485464436, 0.08227673849014522, -0.10880393014174887,
    0.09230432116037748, -0.05869339858963677, 0.028362277418956403, -0.009746579558029276, 0.0017556258528952954,
    0.0002937136655913448, -0.0002901540805408417, 5.16490988926824e-05, 2.2384239155082227e-05,
    -1.1444146237700524e-05, -9.735598967367748e-07, 1.751637648849062e-06, -5.721823060322409e-08,
    -2.586685071615589e-07, 2.3263508708859124e-08, 3.867533424222236e-08, -3.744210080962019e-09,
    -5.1739902140113095e-09, 3.1114333809799254e-10, 4.2514714447963895e-10,
)
# fmt: on


def erfcx(x: Tensor) -> Tensor:
    """exp(x²)·erfc(x) of float64."""
    size = torch.abs(x)
    positive = _erfcx_positive(size)
    return torch.where(x < 0, 2 * torch.exp(x * x) - positive, positive)


def _erfcx_positive(x: Tensor) -> Tensor:
    return polynomial(1 - 2 * _MIDDLE / (x + _MIDDLE), _ERFCX) / (1 + 2 * x)


def erfc(x: Tensor) -> Tensor:
    """erfc(x) of float64."""
    size = torch.abs(x)
    tail = torch.exp(-size * size) * _erfcx_positive(size)
    return torch.where(size < 1, 1 - _erf_near(x), torch.where(x < 0, 2 - tail, tail))


def erf(x: Tensor) -> Tensor:
    """erf(x) of float64."""
    size = torch.abs(x)
    tail = torch.sign(x) * (1 - torch.exp(-size * size) * _erfcx_positive(size))
    return torch.where(size < 1, _erf_near(x), tail)


def _erf_near(x: Tensor) -> Tensor:
    x = instead(x, torch.abs(x) > 1, 0.0)
    return x * polynomial(x * x, _ERF)


def erfinv(y: Tensor) -> Tensor:
    """The x with erf(x) = y, of float64."""
    return _inverse(y, 1 - torch.abs(y))


def _inverse(y: Tensor, rest: Tensor) -> Tensor:
    """The x with erf(x) = y; `rest` is 1 - |y|, which keeps its digits in the tails."""
    inner = torch.abs(y) < 0.5
    near = instead(y, ~inner, 0.0)
    x = torch.sign(near) * _winitzki(1 - torch.abs(near))
    for _ in range(_STEPS):
        x = x - (_erf_near(x) - near) * (math.sqrt(math.pi) / 2) * torch.exp(x * x)

    tail = instead(rest, inner | (rest <= 0), 0.5)
    size = _winitzki(tail)
    for _ in range(_STEPS):
        scaled = _erfcx_positive(size)
        size = size + (torch.log(scaled) - size * size - torch.log(tail)) * scaled * (math.sqrt(math.pi) / 2)
    size = torch.where(rest == 0, torch.full_like(y, torch.inf), nan_where((rest < 0) | torch.isnan(rest), size))
    return torch.where(inner, x, torch.sign(y) * size)


def _winitzki(rest: Tensor) -> Tensor:
    """Nearly the positive x with erfc(x) = rest."""
    a = 0.147
    logarithm = torch.log(rest * (2 - rest))
    u = 2 / (math.pi * a) + logarithm / 2
    return torch.sqrt(torch.clamp(torch.sqrt(u * u - logarithm / a) - u, min=0.0))


def log_ndtr(x: Tensor) -> Tensor:
    """Of float64: the logarithm of the normal distribution's share below x."""
    below = instead(x, x > -1, -1.0)
    tail = torch.log(_erfcx_positive(-below / math.sqrt(2)) / 2) - below * below / 2
    return torch.where(x < -1, tail, log1p(-erfc(instead(x, x < -1, 0.0) / math.sqrt(2)) / 2))


def ndtri(p: Tensor) -> Tensor:
    """Of float64: the x below which this share is."""
    return math.sqrt(2) * _inverse(2 * p - 1, 2 * torch.minimum(p, 1 - p))


def _is_double(self: Tensor) -> bool:
    return self.dtype == torch.float64


@composes("aten::erf.default", "aten::special_erf.default")
@only_where(_is_double)
def _erf_of_double(self: Tensor) -> Tensor:
    return erf(self)


@composes("aten::special_ndtr.default")
@only_where(_is_double)
def _ndtr_of_double(self: Tensor) -> Tensor:
    return (1 + erf(self / math.sqrt(2))) / 2


# Under torch.special's other names too: torch.export keeps the name that was called (native_functions.yaml).
composes("aten::erfc.default", "aten::special_erfc.default")(in_double(erfc))
composes("aten::special_erfcx.default")(in_double(erfcx))
composes("aten::erfinv.default", "aten::special_erfinv.default")(in_double(erfinv))
composes("aten::special_log_ndtr.default")(in_double(log_ndtr))
composes("aten::special_ndtri.default")(in_double(ndtri))
