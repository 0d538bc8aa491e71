"""Special functions: the formulas over their whole range, and a few of them as models.

A formula is plain PyTorch, so it is first held against the operator itself, at poles, at the ends and at NaN too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchport as tp
from torchport.operators import library

aten = torch.ops.aten
inf, nan = torch.inf, torch.nan
Model = Callable[..., Any]

EDGES = [0.0, -0.0, 1.0, 2.0, 10.0, 0.5, -0.5, -1.0, 1e-8, -1e-8, 1e-30, 100.0, -100.3, 1e4, inf, -inf, nan]
ONE = [
    aten.lgamma.default,
    aten.digamma.default,
    aten.erf.default,
    aten.erfc.default,
    aten.erfinv.default,
    aten.special_erfcx.default,
    aten.special_ndtr.default,
    aten.special_log_ndtr.default,
    aten.special_ndtri.default,
    aten.i0.default,
    aten.special_i0e.default,
    aten.special_i1.default,
    aten.special_i1e.default,
    aten.special_modified_bessel_i0.default,
    aten.special_modified_bessel_i1.default,
    aten.special_modified_bessel_k0.default,
    aten.special_modified_bessel_k1.default,
    aten.special_scaled_modified_bessel_k0.default,
    aten.special_scaled_modified_bessel_k1.default,
    aten.special_bessel_j0.default,
    aten.special_bessel_j1.default,
    aten.special_bessel_y0.default,
    aten.special_bessel_y1.default,
    aten.special_spherical_bessel_j0.default,
    aten.special_airy_ai.default,
]
TWO = [
    aten.igamma.default,
    aten.igammac.default,
    aten.special_zeta.default,
    aten.special_xlog1py.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.hypot.default,
]
EXACT = [aten.fmax.default, aten.fmin.default, aten.copysign.Tensor, aten.nextafter.default]


def composition(operator: Any) -> Callable[..., Any]:
    return library.compositions()[operator]


def numbers(dtype: torch.dtype) -> Tensor:
    parts = [torch.tensor(EDGES), torch.linspace(-30, 30, 241), torch.linspace(-1, 1, 101), torch.logspace(-6, 2, 60)]
    return torch.cat(parts).to(dtype)


def close(got: Tensor, want: Tensor) -> None:
    """PyTorch's own Airy function and Bessel functions are off by a millionth, in float64 too."""
    tolerance = {"rtol": 3e-5, "atol": 2e-6} if want.dtype == torch.float32 else {"rtol": 1e-6, "atol": 2e-6}
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", ONE, ids=str)
def test_formulas_of_one_number(operator: Any, dtype: torch.dtype) -> None:
    x = numbers(dtype)
    x = x[x != 1e4]  # sines of that keep three digits in PyTorch's float32
    got = composition(operator)(x)
    if got is not NotImplemented:  # left to torch's translation
        close(got, operator(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", TWO, ids=str)
def test_formulas_of_two_numbers(operator: Any, dtype: torch.dtype) -> None:
    x = numbers(dtype)
    y = torch.cat([x[: len(EDGES)], x[len(EDGES) :: 9]]).unsqueeze(1)
    x = x[x != inf] if operator is aten.special_zeta.default else x  # for which PyTorch gives what its loop ends with
    close(composition(operator)(x, y), operator(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", EXACT, ids=str)
def test_exact_answers(operator: Any, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    ends = torch.tensor([limits.max, -limits.max, limits.tiny, -limits.tiny, limits.tiny / 8], dtype=dtype)
    x = torch.cat([numbers(dtype), ends])
    torch.testing.assert_close(
        composition(operator)(x, x[:, None]), operator(x, x[:, None]), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponents_and_signs(dtype: torch.dtype) -> None:
    x = torch.cat([numbers(dtype), 2.0 ** torch.arange(-140, 120, dtype=dtype)])
    for got, want in zip(composition(aten.frexp.Tensor)(x), torch.frexp(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(composition(aten.signbit.default)(x[~x.isnan()]), torch.signbit(x[~x.isnan()]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 25])
def test_polygamma(n: int, dtype: torch.dtype) -> None:
    x = numbers(dtype)
    close(composition(aten.polygamma.default)(n, x), torch.polygamma(n, x))


@pytest.mark.parametrize("operator", [aten.lgamma.default, aten.erfinv.default, aten.i0.default])
def test_whole_numbers_give_floats(operator: Any) -> None:
    x = torch.arange(5)
    close(composition(operator)(x), operator(x))


def gamma(x: Tensor) -> Any:
    return torch.lgamma(x), torch.polygamma(2, x)


def errors(x: Tensor) -> Any:
    return torch.erf(x), torch.erfc(x), torch.special.log_ndtr(x), torch.log1p(x)


def waves(x: Tensor) -> Any:
    return torch.special.bessel_y0(x), torch.i0(x)


def incomplete(x: Tensor) -> Any:
    return torch.igamma(x, 2 * x)


def floats(x: Tensor) -> Any:
    y = x.flip(0)
    mantissa, exponent = torch.frexp(x)
    return torch.fmax(x, y), torch.copysign(x, y), torch.copysign(x, -2), mantissa, exponent, torch.nextafter(x, y)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (gamma, torch.float32),
        (errors, torch.float64),
        (waves, torch.float32),
        (incomplete, torch.float32),
        (floats, torch.float32),
    ],
)
def test_models(model: Model, dtype: torch.dtype) -> None:
    exported = tp.export(model, (torch.rand(8, dtype=dtype),), dynamic={"x": {0: "n"}}, route="export")
    x = torch.cat([torch.tensor([0.0, -0.0, 1.0, -2.5, 20.0, nan]), torch.linspace(-3, 12, 41)]).to(dtype)
    got, want = tp.session(exported.model)(x), model(x)
    for a, b in zip(
        (got,) if isinstance(got, Tensor) else got, (want,) if isinstance(want, Tensor) else want, strict=True
    ):
        assert a.dtype == b.dtype
        close(a, b)


def polynomials(x: Tensor, n: Tensor) -> Any:
    return (
        torch.special.chebyshev_polynomial_u(x, n),
        torch.special.hermite_polynomial_h(x, n),
        torch.special.laguerre_polynomial_l(x, n),
        torch.special.legendre_polynomial_p(x, n),
        torch.special.shifted_chebyshev_polynomial_w(x, 4),
    )


def test_polynomials_of_any_degree() -> None:
    example = (torch.randn(6), torch.arange(6))
    exported = tp.export(polynomials, example, dynamic={"x": {0: "n"}, "n": {0: "n"}}, route="export")
    x = torch.tensor([0.3, -0.9, 1.0, -1.0, 2.5, 0.0, 0.7, 0.5, 3.0, 1.2])
    n = torch.tensor([7, 12, 3, 5, 4, -1, 2, 0, 200, 1])
    for got, want in zip(tp.session(exported.model)(x, n), polynomials(x, n), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    empty = tp.session(exported.model)(x[:0], n[:0])
    assert all(len(got) == 0 for got in empty)
