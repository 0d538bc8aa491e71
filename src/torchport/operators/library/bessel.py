"""aten::i0, aten::special_{i0e, i1, i1e, bessel_j0, bessel_j1, bessel_y0, bessel_y1, spherical_bessel_j0,
modified_bessel_{i0, i1, k0, k1}, scaled_modified_bessel_{k0, k1}}

ONNX has none of them. Near zero each is a power series, far away a wave or a decay with a smooth factor; both are
polynomials here, of a t that runs over [-1, 1]:

    near, x ≤ 8   e⁻ˣ·I₀, e⁻ˣ·I₁/x            t = x/4 - 1
                  J₀, J₁/x                     t = x²/32 - 1
                  Y₀ - 2/π·log x·J₀, (Y₁ - 2/π·(log x·J₁ - 1/x)) / x
          x ≤ 2   K₀ + log(x/2)·I₀, x·(K₁ - log(x/2)·I₁)          t = x²/2 - 1
    far           √x·e⁻ˣ·I                     t = 16/x - 1
                  √x·eˣ·K                      t = 4/x - 1
                  J = √(2/πx)·(P·cos χ - Q·sin χ), Y = √(2/πx)·(P·sin χ + Q·cos χ), χ = x - π/4 - ν·π/2
                  P, x·Q                       t = 128/x² - 1

Source of truth: PyTorch's answers; DLMF 10. Y and K are NaN below zero there, -∞ and ∞ at zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchport.operators.library import bessel_coefficients as table
from torchport.operators.library.special_numbers import floating, in_double, instead, nan_where, polynomial
from torchport.operators.registering import composes

_WAVE, _DECAY = 8.0, 2.0  # where near ends


def i0e(x: Tensor) -> Tensor:
    """e^-|x| · I₀(x)"""
    return _scaled_i(torch.abs(x), table.I0_NEAR, table.I0_FAR, power=0)


def i1e(x: Tensor) -> Tensor:
    """e^-|x| · I₁(x)"""
    return torch.sign(x) * _scaled_i(torch.abs(x), table.I1_NEAR, table.I1_FAR, power=1)


def _scaled_i(size: Tensor, near: tuple[float, ...], far: tuple[float, ...], power: int) -> Tensor:
    is_near = size <= _WAVE
    low, high = instead(size, ~is_near, _WAVE), instead(size, is_near, _WAVE)
    inner = polynomial(low / 4 - 1, near) * (low if power else 1.0)
    return torch.where(is_near, inner, polynomial(16 / high - 1, far) / torch.sqrt(high))


def i0(x: Tensor) -> Tensor:
    """I₀(x)"""
    return torch.exp(torch.abs(x)) * i0e(x)


def i1(x: Tensor) -> Tensor:
    """I₁(x)"""
    return torch.exp(torch.abs(x)) * i1e(x)


def _as_far_as_exp(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """PyTorch's I is infinite where eˣ is: from 88.7 in float32, though I reaches 91.9. At ∞ it is NaN: ∞ · 0."""

    def run(self: Tensor) -> Tensor:
        x = self.to(torch.float64)
        largest = torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).max
        end = torch.sign(x) * torch.inf if function is i1 else torch.full_like(x, torch.inf)
        result = torch.where(torch.abs(x) > math.log(largest), end, function(x))
        return nan_where(torch.isinf(x), result).to(floating(self))

    return run


def scaled_k0(x: Tensor) -> Tensor:
    """eˣ · K₀(x)"""
    low = instead(x, x > _DECAY, _DECAY)
    near = polynomial(low * low / 2 - 1, table.K0_NEAR) - torch.log(low / 2) * i0(low)
    return _k(x, near * torch.exp(low), table.K0_FAR)


def scaled_k1(x: Tensor) -> Tensor:
    """eˣ · K₁(x)"""
    low = instead(x, x > _DECAY, _DECAY)
    near = polynomial(low * low / 2 - 1, table.K1_NEAR) / low + torch.log(low / 2) * i1(low)
    return _k(x, near * torch.exp(low), table.K1_FAR)


def _k(x: Tensor, near: Tensor, far: tuple[float, ...]) -> Tensor:
    high = instead(x, x <= _DECAY, _DECAY)
    result = torch.where(x <= _DECAY, near, polynomial(4 / high - 1, far) / torch.sqrt(high))
    return _at_zero(x, result, torch.inf)


def k0(x: Tensor) -> Tensor:
    """K₀(x)"""
    return torch.exp(-x) * scaled_k0(x)


def k1(x: Tensor) -> Tensor:
    """K₁(x)"""
    return torch.exp(-x) * scaled_k1(x)


def j0(x: Tensor) -> Tensor:
    """J₀(x)"""
    size = torch.abs(x)
    return torch.where(size <= _WAVE, _near(size, table.J0_NEAR), _wave(size, table.P0_FAR, table.Q0_FAR, 0.25, 0.0))


def j1(x: Tensor) -> Tensor:
    """J₁(x)"""
    size = torch.abs(x)
    near, far = _near(size, table.J1_NEAR) * size, _wave(size, table.P1_FAR, table.Q1_FAR, 0.75, 0.0)
    return torch.sign(x) * torch.where(size <= _WAVE, near, far)


def y0(x: Tensor) -> Tensor:
    """Y₀(x)"""
    low = instead(x, x > _WAVE, _WAVE)
    near = _near(low, table.Y0_NEAR) + 2 / math.pi * torch.log(low) * _near(low, table.J0_NEAR)
    far = _wave(x, table.P0_FAR, table.Q0_FAR, 0.25, 0.5)
    return _at_zero(x, torch.where(x <= _WAVE, near, far), -torch.inf)


def y1(x: Tensor) -> Tensor:
    """Y₁(x)"""
    low = instead(x, x > _WAVE, _WAVE)
    logarithm = torch.log(low) * _near(low, table.J1_NEAR) * low - 1 / low
    near = _near(low, table.Y1_NEAR) * low + 2 / math.pi * logarithm
    far = _wave(x, table.P1_FAR, table.Q1_FAR, 0.75, 0.5)
    return _at_zero(x, torch.where(x <= _WAVE, near, far), -torch.inf)


def _near(size: Tensor, series: tuple[float, ...]) -> Tensor:
    low = instead(size, size > _WAVE, _WAVE)
    return polynomial(low * low / 32 - 1, series)


def _wave(size: Tensor, p: tuple[float, ...], q: tuple[float, ...], phase: float, later: float) -> Tensor:
    """`phase` and `later` in half turns: Y is J a quarter of a turn later."""
    high = instead(size, size <= _WAVE, _WAVE)
    t = 128 / (high * high) - 1
    angle = high - (phase + later) * math.pi
    wave = polynomial(t, p) * torch.cos(angle) - polynomial(t, q) / high * torch.sin(angle)
    return torch.sqrt(2 / (math.pi * high)) * wave


def _at_zero(x: Tensor, result: Tensor, number: float) -> Tensor:
    return torch.where(x == 0, torch.full_like(x, number), nan_where(x < 0, result))


def spherical_j0(x: Tensor) -> Tensor:
    """sin(x) / x, one at zero."""
    known = instead(x, x == 0, 1.0)
    result = torch.where(x == 0, torch.ones_like(x), torch.sin(instead(known, torch.isinf(x), 0.0)) / known)
    return torch.where(torch.isinf(x), torch.zeros_like(x), result)


composes("aten::special_i0e.default")(in_double(i0e))
composes("aten::special_i1e.default")(in_double(i1e))
composes("aten::special_modified_bessel_k0.default")(in_double(k0))
composes("aten::special_modified_bessel_k1.default")(in_double(k1))
composes("aten::special_scaled_modified_bessel_k0.default")(in_double(scaled_k0))
composes("aten::special_scaled_modified_bessel_k1.default")(in_double(scaled_k1))
composes("aten::special_bessel_j0.default")(in_double(j0))
composes("aten::special_bessel_j1.default")(in_double(j1))
composes("aten::special_bessel_y0.default")(in_double(y0))
composes("aten::special_bessel_y1.default")(in_double(y1))
composes("aten::special_spherical_bessel_j0.default")(in_double(spherical_j0))
# Under torch.special's other names too: torch.export keeps the name that was called (native_functions.yaml).
composes("aten::i0.default", "aten::special_i0.default", "aten::special_modified_bessel_i0.default")(_as_far_as_exp(i0))
composes("aten::special_i1.default", "aten::special_modified_bessel_i1.default")(_as_far_as_exp(i1))
