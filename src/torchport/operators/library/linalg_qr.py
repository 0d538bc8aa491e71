"""QR by Householder reflections, and LDL factorizations of symmetric matrices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.linalg_factorizations import (
    column,
    is_empty,
    places,
    real,
    repeated,
    row,
    side,
    swapped,
)
from torchport.operators.registration import composes

# aten::linalg_qr, aten::geqrf, aten::linalg_householder_product, aten::ormqr: reflections that leave a triangle.
#
#     H = 1 - τ·v·vᵀ takes the rest of a column to (β, 0, ..., 0):
#     β = -sign(α)·‖(α, x)‖, τ = (β - α)/β, v = (1, x/(α - β));   where x = 0 nothing is done and τ = 0
#     Q = H₁·H₂·..., R = what is left of the matrix
#
# Torch has no translation and ONNX no operator. The columns are steps of a loop; all sizes may vary. The signs are
# LAPACK's, which decides those of Q and R. The matrix is brought to numbers near one first, so that no square overflows
# or vanishes.
#
# Source of truth: LAPACK's geqr2, larfg and org2r, PyTorch's answers.


def scale(matrix: Tensor) -> Tensor:
    """The largest absolute value of each matrix, with its axes kept; one where all are zero."""
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest == 0, torch.ones_like(largest), largest)


def qr_factored(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """R above the diagonal and the reflections below it in one matrix, as LAPACK packs them; and every τ."""
    steps = min(real(matrix).shape[-2:])
    factors = matrix.new_zeros((*matrix.shape[:-2], steps))
    if is_empty(matrix):
        return matrix.clone(), factors

    def step(k: Tensor, packed: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = places(packed, -2), places(packed, -1)
        own = column(packed, k)
        alpha, below = row(own, k), torch.where(rows > k, own, torch.zeros_like(own))
        squares = below.mT @ below
        length = (alpha * alpha + squares).sqrt()
        idle = squares == 0
        beta = torch.where(idle, alpha, torch.where(alpha < 0, length, -length))
        one = torch.ones_like(beta)
        factor = torch.where(idle, torch.zeros_like(beta), (beta - alpha) / torch.where(idle, one, beta))
        tail = below / torch.where(idle, one, alpha - beta)
        vector = torch.where(rows == k, one, tail)
        others = packed - factor * vector * (vector.mT @ packed)
        new = torch.where(rows < k, own, torch.where(rows == k, beta, tail))
        return (
            torch.where(columns > k, others, torch.where(columns == k, new, packed)),
            torch.where(places(factors, -1) == k, factor.squeeze(-1), factors),
        )

    size = scale(matrix)
    packed, factors = repeated(steps, step, (matrix / size, factors))
    return torch.where(places(packed, -2) <= places(packed, -1), packed * size, packed), factors


def _reflected(vectors: Tensor, factors: Tensor, target: Tensor, *, turned: bool) -> Tensor:
    """Q·target, or Qᵀ·target."""
    if is_empty(target) or is_empty(factors):
        return target.clone()

    def step(k: Tensor, target: Tensor, vectors: Tensor, factors: Tensor) -> tuple[Tensor]:
        place = k if turned else factors.shape[-1] - 1 - k
        rows = places(vectors, -2)
        own = column(vectors, place)
        below = torch.where(rows > place, own, torch.zeros_like(own))
        vector = torch.where(rows == place, torch.ones_like(own), below)
        return (target - column(factors, place).unsqueeze(-1) * vector * (vector.mT @ target),)

    return repeated(factors.shape[-1], step, (target,), (vectors, factors))[0]


def _unit(like: Tensor, height: Any, width: Any) -> Tensor:
    unit = torch.eye(height, width, dtype=like.dtype, device=like.device)
    return unit.expand(*like.shape[:-2], height, width)


@composes("aten::geqrf.default")
def geqrf(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return qr_factored(matrix)


@composes("aten::linalg_householder_product.default", "aten::orgqr.default")
def householder_product(vectors: Tensor, factors: Tensor) -> Tensor:
    height, width = real(vectors).shape[-2:]
    return _reflected(vectors, factors, _unit(vectors, height, width), turned=False)


@composes("aten::ormqr.default")
def ormqr(vectors: Tensor, factors: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    real(vectors)
    if left:
        return _reflected(vectors, factors, other, turned=transpose)
    return _reflected(vectors, factors, other.mT, turned=not transpose).mT


@composes("aten::linalg_qr.default")
def qr(matrix: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    height, width = real(matrix).shape[-2:]
    least = min(height, width)
    packed, factors = qr_factored(matrix)
    if mode == "r":
        return matrix.new_zeros((0,)), packed[..., :least, :].triu()
    rows = height if mode == "complete" else least
    unit = _unit(matrix, height, rows)
    return _reflected(packed, factors, unit, turned=False), packed[..., :rows, :].triu()


@composes("aten::qr.default")
def old_qr(matrix: Tensor, some: bool = True) -> tuple[Tensor, Tensor]:
    return qr(matrix, "reduced" if some else "complete")


# aten::linalg_ldl_factor and aten::linalg_ldl_solve: a symmetric matrix as P·L·D·Lᵀ·Pᵀ, D with blocks of one or two.
#
#     at column k: a = |aₖₖ|, c = the largest below it, in row i, r = the largest beside the diagonal of row i;
#     with α = (1 + √17)/8: aₖₖ is the block where a ≥ αc or a ≥ αc²/r, aᵢᵢ where |aᵢᵢ| ≥ αr, else both rows are (Bunch
#     and Kaufman's choice); the row comes up by a swap of rows and columns, and the rest loses the block's share
#
# Torch has no translation and ONNX no operator. Where a block of two begins depends on the numbers: every step computes
# both blocks and takes one, and does nothing on the second column of a block. Pivots are LAPACK's: counted from one,
# negative and given twice for a block of two.
#
# Source of truth: LAPACK's sytf2 and sytrs, PyTorch's answers.

LARGEST = 16  # columns; they are written out one by one
ALPHA = (1 + math.sqrt(17)) / 8


def _choice(work: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The row that comes up, and whether it makes a block of two with the first one."""
    own = work[..., 0, :1].abs()
    below = work[..., 1:, 0].abs()
    largest, row = below.amax(-1, keepdim=True), below.argmax(-1, keepdim=True) + 1
    beside = work.gather(-2, row.unsqueeze(-1).expand(*row.shape, work.shape[-1])).squeeze(-2).abs()
    pivot = beside.gather(-1, row)
    most = torch.where(rows == row, torch.zeros_like(beside), beside).amax(-1, keepdim=True)
    ratio = largest / torch.where(most == 0, torch.ones_like(most), most)
    stays = (own >= ALPHA * largest) | (own >= ALPHA * largest * ratio)
    return torch.where(stays, torch.zeros_like(row), row), stays.logical_not() & (pivot < ALPHA * most)


def _block_of_two(work: Tensor) -> tuple[Tensor, Tensor]:
    """The rows below a block times its inverse, and the rest without its share."""
    first, second = work[..., 2:, :1], work[..., 2:, 1:2]
    corner = work[..., 1:2, :1]
    corner = torch.where(corner == 0, torch.ones_like(corner), corner)  # not a block of two then
    one, two = work[..., 1:2, 1:2] / corner, work[..., :1, :1] / corner
    inside = one * two - 1
    factor = 1 / torch.where(inside == 0, torch.ones_like(inside), inside) / corner
    left, right = factor * (one * first - second), factor * (two * second - first)
    rest = work[..., 2:, 2:] - left * first.mT - right * second.mT
    return torch.cat([left, right], -1), rest


def ldl_factored(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L below and D on the diagonal and, for blocks of two, next to it; the pivots; and info."""
    count = side(real(matrix).shape[-1], LARGEST)
    batch = matrix.shape[:-2]
    info = torch.zeros((*batch, 1), dtype=torch.int32, device=matrix.device)
    if is_empty(matrix):
        return matrix.clone(), torch.zeros((*batch, count), dtype=torch.int32, device=matrix.device), info.squeeze(-1)
    lower = matrix.tril()
    work = lower + lower.tril(-1).mT  # rows and columns that are not done
    busy = torch.zeros((*batch, 1), dtype=torch.bool, device=matrix.device)  # on the second column of a block
    later = work[..., :, 0]
    columns: list[Tensor] = []
    pivots: list[Tensor] = []
    for k in range(count):
        rows = torch.arange(count - k, device=matrix.device)
        best, double = torch.zeros_like(busy, dtype=torch.int64), torch.zeros_like(busy)
        if k < count - 1:
            best, double = _choice(work, rows)
            best, double = torch.where(busy, torch.zeros_like(best), best), double & busy.logical_not()
            order = swapped(rows, double.to(torch.int64), best)
            work = work.gather(-2, order.unsqueeze(-1).expand(work.shape))
            work = work.gather(-1, order.unsqueeze(-2).expand(work.shape))
        head = work[..., :1, :1]
        zero = head == 0
        idle = zero.squeeze(-1) & busy.logical_not() & double.logical_not()
        info = torch.where((info == 0) & idle, torch.full_like(info, k + 1), info)
        multiples = work[..., 1:, :1] / torch.where(zero, torch.ones_like(head), head)
        column = torch.cat([head, multiples], -2).squeeze(-1)
        rest = work[..., 1:, 1:] - multiples * work[..., :1, 1:]
        pivot = (best + (k + 1)).to(torch.int32)
        pivot = torch.where(double, -pivot, pivot)
        pivots.append(torch.where(busy, pivots[-1], pivot) if k else pivot)
        column = torch.where(busy, later, column)
        if k < count - 1:
            both, inner = _block_of_two(work)
            column = torch.where(double, torch.cat([work[..., :2, 0], both[..., 0]], -1), column)
            later = torch.cat([work[..., 1:2, 1], both[..., 1]], -1)
            kept = torch.cat([work[..., 1:2, 1:], torch.cat([work[..., 2:, 1:2], inner], -1)], -2)
            rest = torch.where(double.unsqueeze(-1), kept, torch.where(busy.unsqueeze(-1), work[..., 1:, 1:], rest))
        columns.append(torch.nn.functional.pad(column, (k, 0)))
        work, busy = rest, double
    return torch.stack(columns, -1), torch.cat(pivots, -1), info.squeeze(-1)


@composes("aten::linalg_ldl_factor_ex.default")
def ldl_factor_ex(
    matrix: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return ldl_factored(matrix)


@composes("aten::linalg_ldl_factor.default")
def ldl_factor(matrix: Tensor, *, hermitian: bool = False) -> tuple[Tensor, Tensor]:
    return ldl_factored(matrix)[:2]


def _starts(pivots: Tensor) -> list[Tensor]:
    """For every column whether a block of two begins there."""
    starts: list[Tensor] = []
    for k in range(pivots.shape[-1]):
        negative = pivots[..., k] < 0
        starts.append(negative & starts[-1].logical_not() if starts else negative)
    return [start.unsqueeze(-1).unsqueeze(-1) for start in starts]


def _divided(packed: Tensor, starts: list[Tensor], work: Tensor, k: int) -> Tensor:
    """Row k by its block of D; both rows of a block of two at the second."""
    rows = torch.arange(len(starts), device=packed.device).unsqueeze(-1)
    own, head = work[..., k : k + 1, :], packed[..., k : k + 1, k : k + 1]
    row = own / torch.where(starts[k], torch.ones_like(head), head)
    if k:
        second = starts[k - 1]
        before, corner = work[..., k - 1 : k, :], packed[..., k : k + 1, k - 1 : k]
        corner = torch.where(second, corner, torch.ones_like(corner))
        one, two = packed[..., k - 1 : k, k - 1 : k] / corner, head / corner
        inside = torch.where(second, one * two - 1, torch.ones_like(one))
        above, under = before / corner, own / corner
        row = torch.where(second, (one * under - above) / inside, row)
        before = torch.where(second, (two * above - under) / inside, before)
        work = torch.where(rows == k - 1, before, work)
    return torch.where(rows == k, row, work)


@composes("aten::linalg_ldl_solve.default")
def ldl_solve(packed: Tensor, pivots: Tensor, right: Tensor, *, hermitian: bool = False) -> Tensor:
    """X of A·X = right: through P·L and D, and through (P·L)ᵀ, whose steps are the first ones backwards.

    A row is divided as soon as it is done, as in LAPACK: pivots that no factorization gives may swap it later.
    """
    count = side(real(packed).shape[-1], LARGEST)
    batch = torch.broadcast_shapes(packed.shape[:-2], right.shape[:-2])
    work = right.expand(*batch, *right.shape[-2:])
    if is_empty(work) or is_empty(packed):
        return work.clone()
    rows = torch.arange(count, device=packed.device).unsqueeze(-1)
    starts = _starts(pivots)
    orders, multiples = [], []
    for k, start in enumerate(starts):
        pivot = pivots[..., k].abs().to(torch.int64).unsqueeze(-1).unsqueeze(-1) - 1
        place = start.to(torch.int64) + k
        second = starts[k - 1] if k else start.logical_not() & start
        orders.append(swapped(rows, place, torch.where(second, place, pivot)).expand(work.shape))
        column = packed[..., :, k : k + 1]
        multiples.append(torch.where(rows > place, column, torch.zeros_like(column)))
    for k in range(count):
        work = work.gather(-2, orders[k])
        work = work - multiples[k] * work[..., k : k + 1, :]
        work = _divided(packed, starts, work, k)
    for k in reversed(range(count)):
        work = torch.where(rows == k, work - multiples[k].mT @ work, work)
        work = work.gather(-2, orders[k])
    return work
