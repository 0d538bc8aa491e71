"""Cholesky and LU factorizations and their relatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.linalg_triangular import column, is_empty, places, real, repeated, row, substituted
from torchport.operators.registration import composes

# aten::linalg_cholesky and its relatives: A = L·Lᵀ, column by column.
#
#     lⱼⱼ = √dⱼ, l₍ᵢ>ⱼ₎ⱼ = (aᵢⱼ - Σₖ<ⱼ lᵢₖlⱼₖ) / lⱼⱼ,   dⱼ = aⱼⱼ - Σₖ<ⱼ lⱼₖ²
#
# Torch has no translation and ONNX no operator. The columns are steps of a loop; all sizes may vary. A matrix is not
# positive definite where some dⱼ is not positive. `cholesky_ex` then says the first such j, counted from one, and
# leaves dⱼ in its place and all that comes after as it was; the others raise in PyTorch, which a graph cannot, and give
# NaN.
#
# Source of truth: LAPACK's potf2, PyTorch's answers.


def cholesky_factored(matrix: Tensor) -> tuple[Tensor, Tensor]:
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
    lower, info = cholesky_factored(matrix.mT if upper else matrix)
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


# aten::linalg_lu_factor and its relatives: P·L·U = A with partial pivoting, column by column.
#
#   of the rest of column k the entry with the largest absolute value, the first of equals, comes up by a swap of rows;
#   the rows below lose their multiple of row k, and the multiples stay in column k as L
#
# Torch has no translation and ONNX no operator. The columns are steps of a loop; all sizes may vary. A column of zeros
# has no pivot: it stays, and `info` names the first of them, counted from one.
#
# Source of truth: LAPACK's getf2, PyTorch's answers.


def lu_factored(matrix: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """L below and U above the diagonal of one matrix; the swaps, counted from one; and info."""
    if not pivot:
        raise NotImplementedError("an LU factorization without pivoting is not translated; PyTorch has it on GPUs only")
    height, width = real(matrix).shape[-2:]
    steps = min(height, width)
    batch = matrix.shape[:-2]
    info = torch.zeros(batch, dtype=torch.int32, device=matrix.device)
    pivots = torch.zeros((*batch, steps), dtype=torch.int32, device=matrix.device)
    if is_empty(matrix):
        return matrix.clone(), pivots, info

    def step(k: Tensor, packed: Tensor, pivots: Tensor, info: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns = places(packed, -2), places(packed, -1)
        sizes = torch.where(rows >= k, column(packed, k).abs(), -1.0).squeeze(-1)
        best = sizes.argmax(-1, keepdim=True)
        packed = packed.gather(-2, swapped(rows.squeeze(-1), k, best).unsqueeze(-1).expand(packed.shape))
        top = row(packed, k)
        head = column(top, k)
        none = head == 0
        multiples = column(packed, k) / torch.where(none, torch.ones_like(head), head)
        changed = torch.where(columns > k, packed - multiples * top, torch.where(columns == k, multiples, packed))
        fails = (info == 0) & none.squeeze(-1).squeeze(-1)
        return (
            torch.where(rows > k, changed, packed),
            torch.where(places(pivots, -1) == k, (best + 1).to(torch.int32), pivots),
            torch.where(fails, (k + 1).to(torch.int32), info),
        )

    packed, pivots, info = repeated(steps, step, (matrix, pivots, info))
    return packed, pivots, info


def swapped(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The numbers of all rows with two of them exchanged."""
    return torch.where(rows == one, other, torch.where(rows == other, one, rows))


def permutation(pivots: Tensor, height: Any) -> Tensor:
    """Which row of A comes to each place."""
    order = torch.arange(height, device=pivots.device).expand(*pivots.shape[:-1], height)
    if is_empty(pivots):
        return order

    def step(k: Tensor, order: Tensor, pivots: Tensor) -> tuple[Tensor]:
        other = column(pivots, k).to(torch.int64) - 1
        return (order.gather(-1, swapped(places(order, -1), k, other).expand(order.shape)),)

    return repeated(pivots.shape[-1], step, (order,), (pivots,))[0]


def solved(packed: Tensor, pivots: Tensor, right: Tensor) -> Tensor:
    """X of A·X = right, where A is given by its factors."""
    count = packed.shape[-1]
    batch = torch.broadcast_shapes(packed.shape[:-2], right.shape[:-2])
    if is_empty(right):
        return right.expand(*batch, *right.shape[-2:]).clone()
    order = permutation(pivots, count).unsqueeze(-1).expand(*batch, count, right.shape[-1])
    moved = right.expand(*batch, *right.shape[-2:]).gather(-2, order)
    return substituted(packed, substituted(packed, moved, upper=False, unit=True), upper=True)


def _solved_turned(packed: Tensor, pivots: Tensor, right: Tensor) -> Tensor:
    """X of Aᵀ·X = right: the same steps backwards."""
    count = packed.shape[-1]
    if is_empty(right):
        return right.expand(*torch.broadcast_shapes(packed.shape[:-2], right.shape[:-2]), *right.shape[-2:]).clone()
    turned = packed.mT
    moved = substituted(turned, substituted(turned, right, upper=False), upper=True, unit=True)
    back = permutation(pivots, count).argsort(-1).unsqueeze(-1)
    return moved.gather(-2, back.expand(*moved.shape[:-2], count, moved.shape[-1]))


@composes("aten::linalg_lu_factor_ex.default")
def lu_factor_ex(matrix: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    return lu_factored(matrix, pivot)


@composes("aten::linalg_lu_factor.default")
def lu_factor(matrix: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor]:
    return lu_factored(matrix, pivot)[:2]


@composes("aten::_lu_with_info.default")
def lu_with_info(matrix: Tensor, pivot: bool = True, check_errors: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    return lu_factored(matrix, pivot)


@composes("aten::lu_unpack.default")
def unpacked(
    packed: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U; what is not asked for is empty."""
    height, width = packed.shape[-2:]
    least = min(height, width)
    none = packed.new_zeros((0,))
    matrix, lower, upper = none, none, none
    if unpack_data:
        unit = torch.eye(height, least, dtype=packed.dtype, device=packed.device)
        lower = packed[..., :, :least].tril(-1) + unit
        upper = packed[..., :least, :].triu()
    if unpack_pivots:
        rows = torch.arange(height, device=packed.device).unsqueeze(-1)
        matrix = (permutation(pivots, height).unsqueeze(-2) == rows).to(packed.dtype)
    return matrix, lower, upper


@composes("aten::linalg_lu.default")
def lu(matrix: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots, _ = lu_factored(matrix, pivot)
    return unpacked(packed, pivots)


@composes("aten::linalg_lu_solve.default")
def linalg_lu_solve(
    packed: Tensor, pivots: Tensor, right: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    if not left:
        return linalg_lu_solve(packed, pivots, right.mT, adjoint=not adjoint).mT
    return _solved_turned(packed, pivots, right) if adjoint else solved(packed, pivots, right)


@composes("aten::lu_solve.default")
def lu_solve(right: Tensor, packed: Tensor, pivots: Tensor) -> Tensor:
    return solved(packed, pivots, right)
