"""aten::erfc, aten::erfinv, aten::special_{erfcx, log_ndtr, ndtri}; aten::erf, aten::special_ndtr of float64

    erfcx(x) = exp(x²)·erfc(x)                                 erf(x) = 2/√π · Σ (-1)ᵏ·x²ᵏ⁺¹ / (k!·(2k + 1)) for |x| < 1
    ndtr(x)  = erfc(-x/√2) / 2                                 log_ndtr(x) = log(erfcx(-x/√2) / 2) - x²/2 for x < -1
    ndtri(p) = √2 · erfinv(2p - 1)                             ndtr(x) = (1 + erf(x/√2)) / 2, as PyTorch computes it

Torch's erfc is 1 - Erf(x), of which nothing is left from 4 on, nor of log_ndtr, and its erfcx overflows. All rest on
erfcx here, which is smooth: (1 + 2x)·erfcx(x) as a polynomial of (x - 3.75) / (x + 3.75), interpolated with mpmath at
Chebyshev's points. The inverses are Newton's steps from Winitzki's formula, right to 0.2 %; the tail's steps are taken
on log erfc, so that they know 1 - |y| and not y alone. ONNX Runtime has no Erf of float64.

Source of truth: PyTorch's answers; DLMF 7.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchport.operators.composition import only_where
from torchport.operators.library.elementwise import log1p
from torchport.operators.library.special_float64 import in_double, instead, nan_where, polynomial
from torchport.operators.registration import composes

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
