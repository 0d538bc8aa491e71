"""Factorizations and what is made of them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchport as tp
from torchport.errors import TorchportError
from torchport.operators.library import linalg_eigen, linalg_factorizations, linalg_qr, linalg_solve


class Calling(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


def compare(got: Any, wanted: Any) -> None:
    got, wanted = (list(t) if isinstance(t, tuple) else [t] for t in (got, wanted))
    for one, other in zip(got, wanted, strict=True):
        tolerance = 1e-8 if other.dtype is torch.float64 else 1e-3
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def exported(function: Callable[..., Any], x: Tensor, axes: dict[int, str]) -> Callable[[Tensor], Any]:
    return tp.session(tp.export(Calling(function), (x,), dynamic={"x": axes}, route="export").model)


def test_sides_may_vary() -> None:
    session = exported(torch.linalg.inv, positive(draw(2, 4, 4)), {0: "batch", 1: "side", 2: "side"})
    for batch, side in ((1, 2), (3, 7), (1, 20)):
        x = positive(draw(batch, side, side))
        compare(session(x).reshape(x.shape), torch.linalg.inv(x))


def test_singular_values_in_float64() -> None:
    session = exported(torch.linalg.svdvals, draw(2, 6, 4, dtype=torch.float64), {0: "batch"})
    x = draw(5, 6, 4, dtype=torch.float64)
    compare(session(x), torch.linalg.svdvals(x))


def test_vectors_whose_signs_are_lapacks_are_refused() -> None:
    with pytest.raises(TorchportError):
        tp.export(Calling(lambda x: torch.linalg.eigh(x).eigenvectors), (draw(5, 5),), route="export")


BATCHES = [(), (2, 1), (0,)]
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", [0, 1, 5])
def test_square_matrices(batch: tuple[int, ...], dtype: torch.dtype, side: int) -> None:
    x = draw(*batch, side, side, dtype=dtype)
    for matrix in (x, torch.zeros_like(x), positive(x), x + x.mT):
        compare(linalg_factorizations.cholesky_ex(matrix), tuple(torch.linalg.cholesky_ex(matrix)))
        compare(linalg_factorizations.lu_factor_ex(matrix), tuple(torch.linalg.lu_factor_ex(matrix)))
        compare(linalg_qr.ldl_factor_ex(matrix), tuple(torch.linalg.ldl_factor_ex(matrix)))
        compare(linalg_solve.slogdet(matrix), tuple(torch.linalg.slogdet(matrix)))
        compare(linalg_eigen.eigvalsh(matrix), torch.linalg.eigvalsh(matrix))
        compare(linalg_eigen.matrix_rank(matrix), torch.linalg.matrix_rank(matrix))
        compare(linalg_solve.matrix_exp(matrix / 4), torch.linalg.matrix_exp(matrix / 4))
    compare(linalg_solve.inv_ex(positive(x)), tuple(torch.linalg.inv_ex(positive(x))))
    factors = torch.linalg.ldl_factor(positive(x) - 3 * torch.eye(side, dtype=dtype))
    compare(linalg_qr.ldl_solve(*factors, x), torch.linalg.ldl_solve(*factors, x))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sides", [(0, 3), (3, 0), (1, 4), (5, 2), (4, 4)])
def test_oblong_matrices(batch: tuple[int, ...], dtype: torch.dtype, sides: tuple[int, int]) -> None:
    x = draw(*batch, *sides, dtype=dtype)
    for scale in (1.0, 1e-25, 0.0):
        compare(linalg_qr.geqrf(x * scale), tuple(torch.geqrf(x * scale)))
        compare(linalg_factorizations.lu(x * scale), tuple(torch.linalg.lu(x * scale)))
        compare(linalg_eigen.svdvals(x * scale), torch.linalg.svdvals(x * scale))
    for mode in ("reduced", "complete", "r"):
        compare(linalg_qr.qr(x, mode), tuple(torch.linalg.qr(x, mode)))
    for full in (True, False):
        got, wanted = linalg_eigen.linalg_svd(x, full), torch.linalg.svd(x, full)
        assert [t.shape for t in got] == [t.shape for t in wanted]
        count = min(sides)
        compare((got[0][..., :count] * got[1].unsqueeze(-2)) @ got[2][..., :count, :], x)
    compare(linalg_eigen.pinv(x), torch.linalg.pinv(x))
