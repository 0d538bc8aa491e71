"""aten::igamma, aten::igammac: Γ's integral up to x and from x on, each divided by Γ(a)

    P(a, x) = xᵃ·e⁻ˣ / Γ(a + 1) · (1 + x/(a + 1)·(1 + x/(a + 2)·(…)))           for x ≤ 1
    xᵃ·e⁻ˣ / Γ(a) · ∫ exp(±a·w - x·(e^±w - 1)) dw, w from 0 to ∞                otherwise

The integral is Q(a, x) with the upper sign, taken for x > a, and P(a, x) with the lower; the other is one less it. The
integrand falls from w = 0 on. With w = s·exp(u - e⁻ᵘ), s the width of its fall, it is smooth and dies out at both ends
faster than any power, where sums over equal steps of u converge geometrically (Takahasi and Mori's double exponential
formula). PyTorch's series and continued fractions go on until they have converged, which a graph cannot.

Source of truth: ATen's native/Math.h for the edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.gamma import log_gamma
from torchport.operators.library.special_numbers import in_double, instead, nan_where
from torchport.operators.registering import composes

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
