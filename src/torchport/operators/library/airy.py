"""aten::special_airy_ai

    |x| ≤ 4    a polynomial of x/4
    x > 4      Ai(x) = e^-ζ / (2·√π·x^¼) · R                                     ζ = ⅔·|x|^1.5
    x < -4     Ai(x) = (sin(ζ + π/4)·P - cos(ζ + π/4)·Q) / (√π·|x|^¼)

R is a polynomial of 1/ζ, P and ζ·Q of 1/ζ², each brought to [-1, 1] and interpolated with mpmath at Chebyshev's points.

Source of truth: ATen's native/Math.h: zero above 103.892, and NaN at both infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.special_numbers import in_double, instead, nan_where, polynomial

_END = 4.0
_ZETA = 2 / 3 * _END**1.5
# fmt: off
_MIDDLE = (
    0.3550280538878173, -1.035277615171227, 7.955068969759426e-16, 3.786965908136717, -5.52148061424664,
    1.0351647844957743e-14, 8.078860604029066, -8.413684745518898, -9.197898771490929e-11, 7.181209425806927,
    -5.983064706658465, -8.708965084352035e-11, 3.4817984979392813, -2.4545906486527596, 7.355882748543066e-08,
    1.061119541075624, -0.6545578464463374, 2.1515727073704504e-08, 0.22193466645372809, -0.12249036874808258,
    -3.019529889768257e-06, 0.03381863977353246, -0.01696241148152935, -4.1983972328989134e-07, 0.003912080467284713,
    -0.0018092781550537345, 1.0087021814477945e-05, 0.0003566153181311239, -0.00016175558943473203,
    8.230149419967601e-07, 3.153824679754974e-05, -1.1145032423512903e-05, -2.230538739699928e-06,
    1.915779559782283e-06, -1.5706447395127533e-09, -1.2081566560270377e-07,
)
_RIGHT = (
    0.9937884146228121, -0.005937085315977871, 0.00025291100426907666, -1.9231955815334838e-05, 2.0356518992484614e-06,
    -2.697624305346259e-07, 4.2233834926560903e-08, -7.533807490696474e-09, 1.493967972727171e-09,
    -3.236226474190882e-10, 7.592736131029209e-11, -1.8984738361258796e-11, 4.612302036005531e-12,
    -1.2399581399333612e-12, 6.043649849307792e-13, -1.9405408684793942e-13,
)
_P = (
    0.999363720981151, -0.0006209941418019416, 1.4258707704202032e-05, -9.054529720196242e-07, 1.0042141850557856e-07,
    -1.5925134157474398e-08, 3.241545739475139e-09, -7.938135001056149e-10, 2.2418198239897425e-10,
    -6.96436403087975e-11, 2.360915764237545e-11, -1.1002442862433136e-11, 5.007050538194751e-12,
    2.2103630245487523e-13, -4.907191544829304e-13, -1.0992152516140823e-12, 6.271597555609459e-13,
)
_Q = (
    0.0688085741766544, -0.0006071316848869089, 2.6011127080243395e-05, -2.3247007302733242e-06, 3.229739057938273e-07,
    -6.030167966064036e-08, 1.3918092556485582e-08, -3.768710626282985e-09, 1.1561114150371971e-09,
    -3.9105837821079025e-10, 1.433534811539447e-10, -5.953716438186271e-11, 2.6357340107443087e-11,
    -5.50298739759466e-12, 4.375221811175159e-13, -8.065123708443022e-12, 5.8084773400279245e-12,
    3.2467312739223228e-12, -2.5742724427964975e-12, -1.3647556331014607e-12, 9.283456439366537e-13,
)
# fmt: on


def airy_ai(x: Tensor) -> Tensor:
    """Ai(x) of float64."""
    size = torch.abs(x)
    high = instead(size, size < _END, _END)
    root = torch.sqrt(high)
    zeta = 2 / 3 * high * root
    scale = 1 / (math.sqrt(math.pi) * torch.sqrt(root))
    right = scale / 2 * torch.exp(-zeta) * polynomial(2 * _ZETA / zeta - 1, _RIGHT)
    t, angle = 2 * (_ZETA / zeta) ** 2 - 1, zeta + math.pi / 4
    left = scale * (torch.sin(angle) * polynomial(t, _P) - torch.cos(angle) * polynomial(t, _Q) / zeta)
    middle = polynomial(instead(x, size > _END, 0.0) / _END, _MIDDLE)
    outer = torch.where(x < 0, left, torch.where(x > 103.892, torch.zeros_like(x), right))
    return nan_where(torch.isinf(x), torch.where(size <= _END, middle, outer))


def compositions() -> dict[Any, Callable[..., Any]]:
    return {torch.ops.aten.special_airy_ai.default: in_double(airy_ai)}
