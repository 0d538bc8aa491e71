"""aten::linalg_cholesky and its relatives: A = L·Lᵀ, column by column.

    lⱼⱼ = √dⱼ, l₍ᵢ>ⱼ₎ⱼ = (aᵢⱼ - Σₖ<ⱼ lᵢₖlⱼₖ) / lⱼⱼ,   dⱼ = aⱼⱼ - Σₖ<ⱼ lⱼₖ²

Torch has no translation and ONNX no operator. The columns are steps of a loop; all sizes may vary. A matrix is not
positive definite where some dⱼ is not positive. `cholesky_ex` then says the first such j, counted from one, and leaves
dⱼ in its place and all that comes after as it was; the others raise in PyTorch, which a graph cannot, and give NaN.

Source of truth: LAPACK's potf2, PyTorch's answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.loops import column, places, repeated, row
from torchport.operators.library.triangular import is_empty, real, substituted
from torchport.operators.registering import composes


def factored(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """L and info, from the lower triangle."""
    info = torch.zeros(real(matrix).shape[:-2], dtype=torch.int32, device=matrix.device)
    if is_empty(matrix):
        return matrix.clone(), info

    def step(k: Tensor, lower: Tensor, info: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = places(lower, -2), places(lower, -1)
        done = torch.where(columns < k, lower, torch.zeros_like(lower))
        given = column(lower, k)
        reduced = given - done @ row(done, k).mT
        diagonal = row(reduced, k)
        good = diagonal > 0
        root = torch.where(good, diagonal, torch.ones_like(diagonal)).sqrt()
        below = torch.where(good, reduced / root, given)
        new = torch.where(rows == k, torch.where(good, root, diagonal), below)
        going = (info == 0).unsqueeze(-1).unsqueeze(-1)
        fails = good.logical_not().squeeze(-1).squeeze(-1)
        first = torch.where((info == 0) & fails, (k + 1).to(torch.int32), info)
        return torch.where(going & (columns == k) & (rows >= k), new, lower), first

    lower, info = repeated(matrix.shape[-1], step, (matrix.tril(), info))
    return lower, info


@composes("aten::linalg_cholesky_ex.default")
def cholesky_ex(matrix: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lower, info = factored(matrix.mT if upper else matrix)
    return lower.mT if upper else lower, info


@composes("aten::cholesky.default")
def cholesky(matrix: Tensor, upper: bool = False) -> Tensor:
    factor, info = cholesky_ex(matrix, upper=upper)
    good = (info == 0).unsqueeze(-1).unsqueeze(-1)
    return torch.where(good, factor, torch.full_like(factor, float("nan")))


@composes("aten::linalg_cholesky.default")
def linalg_cholesky(matrix: Tensor, *, upper: bool = False) -> Tensor:
    return cholesky(matrix, upper)


@composes("aten::cholesky_solve.default")
def cholesky_solve(right: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """X of A·X = right, where A is given by its factor."""
    lower = factor.mT if upper else factor
    return substituted(lower.mT, substituted(lower, right, upper=False), upper=True)


@composes("aten::cholesky_inverse.default")
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return cholesky_solve(unit, factor, upper)
