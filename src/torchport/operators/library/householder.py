"""aten::linalg_qr, aten::geqrf, aten::linalg_householder_product, aten::ormqr: reflections that leave a triangle.

    H = 1 - τ·v·vᵀ takes the rest of a column to (β, 0, ..., 0):
    β = -sign(α)·‖(α, x)‖, τ = (β - α)/β, v = (1, x/(α - β));   where x = 0 nothing is done and τ = 0
    Q = H₁·H₂·..., R = what is left of the matrix

Torch has no translation and ONNX no operator. The columns are steps of a loop; all sizes may vary. The signs are
LAPACK's, which decides those of Q and R. The matrix is brought to numbers near one first, so that no square overflows
or vanishes.

Source of truth: LAPACK's geqr2, larfg and org2r, PyTorch's answers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.loops import column, places, repeated, row
from torchport.operators.library.triangular import is_empty, real
from torchport.operators.registering import composes


def scale(matrix: Tensor) -> Tensor:
    """The largest absolute value of each matrix, with its axes kept; one where all are zero."""
    largest = matrix.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest == 0, torch.ones_like(largest), largest)


def factored(matrix: Tensor) -> tuple[Tensor, Tensor]:
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
    return factored(matrix)


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
    packed, factors = factored(matrix)
    if mode == "r":
        return matrix.new_zeros((0,)), packed[..., :least, :].triu()
    rows = height if mode == "complete" else least
    unit = _unit(matrix, height, rows)
    return _reflected(packed, factors, unit, turned=False), packed[..., :rows, :].triu()


@composes("aten::qr.default")
def old_qr(matrix: Tensor, some: bool = True) -> tuple[Tensor, Tensor]:
    return qr(matrix, "reduced" if some else "complete")
