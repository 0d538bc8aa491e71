"""Statistics, least squares, and numbers written to places: PyTorch's answers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional

import torchport as tp
from torchport.operators import library
from torchport.operators.library.linalg_solve import lstsq
from torchport.operators.library.statistics import combinations, corrcoef, cov

aten: Any = torch.ops.aten


def close(got: Any, want: Any, **tolerance: float) -> None:
    torch.testing.assert_close(torch.as_tensor(got), want, equal_nan=True, **tolerance)


@pytest.mark.parametrize("shape", [(3, 7), (7,), (3, 1), ()], ids=str)
@pytest.mark.filterwarnings("ignore:cov.*degrees of freedom")
def test_covariance(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    n = x.shape[-1] if x.dim() else 1
    counts, shares = torch.randint(1, 4, (n,)), torch.rand(n)
    for correction, f, a in itertools.product((0, 1, 9), (None, counts), (None, shares)[: min(n, 2)]):
        options: Any = {"correction": correction, "fweights": f, "aweights": a}
        close(cov(x, **options), torch.cov(x, **options))
    close(corrcoef(x), torch.corrcoef(x))


def test_least_squares() -> None:
    for shape, right in (((5, 3), (5, 2)), ((3, 5), (3,)), ((2, 6, 3), (2, 6, 1))):
        a, b = torch.randn(shape, dtype=torch.float64), torch.randn(right, dtype=torch.float64)
        for driver in (None, "gels", "gelsd"):
            for got, want in zip(lstsq(a, b, driver=driver), torch.linalg.lstsq(a, b, driver=driver), strict=True):
                close(got, want)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("r", [0, 1, 2, 3, 5])
def test_combinations(r: int, again: bool) -> None:
    x = torch.randn(4)
    close(combinations(x, r, again), torch.combinations(x, r, again))


@pytest.mark.parametrize("pivots", [[1, 2, 3, 4, 5], [-2, -2, 3, -5, -5], [5, 4, 3, 4, 5], [5, 4, 2, 3, 1]])
def test_ldl_solve_with_any_pivots(pivots: list[int]) -> None:
    packed, right = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    given = packed, torch.tensor(pivots, dtype=torch.int32), right
    close(library.compositions()[aten.linalg_ldl_solve.default](*given), torch.linalg.ldl_solve(*given))


class Training(torch.nn.Module):
    """Batch normalization by the batch, whatever the mode of the model."""

    def forward(self, x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        weight, bias = mean + 1, var + 2
        trained = torch.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, 0.3, 0.1)
        known = torch.native_batch_norm(x, weight, None, mean.clone(), var.clone(), False, 0.3, 0.1)
        return *trained, *known


def test_batch_norm_in_training() -> None:
    calls = [(torch.randn(n, 3, 4), torch.randn(3), torch.rand(3)) for n in (4, 2, 7)]
    session = tp.session(tp.export(Training(), calls[0], dynamic={"x": {0: "n"}}, route="export").model)
    for call in calls:
        for got, want in zip(session(*call), Training()(*call), strict=True):
            close(got, want, rtol=1e-4, atol=1e-5)


class Places(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        up = torch.nn.functional.conv_transpose1d(
            x.unsqueeze(0), x[:4, :3].unsqueeze(1).repeat(1, 2, 1), stride=1, output_padding=1, dilation=2
        )
        return (
            torch.diagonal_scatter(x, y[:3], 1),
            torch.as_strided_scatter(x, y[:4].reshape(2, 2), (2, 2), (4, 1), 1),
            functional.pad(x.unsqueeze(0), (-5, 6, 2, -3), mode="replicate"),
            torch.histogramdd(x, [2, 3, 1, 2], range=[-2.0, 2, -2, 2, -9, 9, -1, 1], density=True).hist,
            up,
        )


def test_places() -> None:
    calls = [(torch.randn(4, 4), torch.randn(4)) for _ in range(3)]
    session = tp.session(tp.export(Places(), calls[0], route="export").model)
    for call in calls:
        for got, want in zip(session(*call), Places()(*call), strict=True):
            close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variance_of_nothing() -> None:
    for x in (torch.randn(3, 0), torch.randn(3, 1)):
        for name in ("var", "std", "var_mean", "std_mean"):
            composition = library.compositions()[getattr(aten, name).correction]
            got, want = composition(x, [1], keepdim=True), getattr(torch, name)(x, [1], keepdim=True)
            for a, b in zip(*((t if isinstance(t, tuple) else (t,)) for t in (got, want)), strict=True):
                close(a, b)
    assert library.compositions()[aten.var.correction](torch.randn(3, 2), [1]) is NotImplemented
