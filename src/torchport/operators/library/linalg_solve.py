"""Inverse, determinant, linear systems and least squares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.linalg_factorizations import column, is_empty, lu_factored, repeated, solved
from torchport.operators.registration import composes, replaces

# aten::linalg_inv, aten::linalg_solve, aten::linalg_det and what PyTorch makes of them: all by an LU factorization.
#
#     A·X = B: U·X = L⁻¹·Pᵀ·B;   A⁻¹ is X for B = 1;   det A = ± Πᵢ uᵢᵢ, the sign changing with every swap of rows
#
# Torch has no translation; ONNX has Det, which ONNX Runtime knows for float32 only, and nothing else. A matrix without
# an inverse raises in PyTorch, which a graph cannot: it gives infinities and NaN, as PyTorch's `_ex` forms do.
#
# Source of truth: aten/src/ATen/native/BatchLinearAlgebra.cpp and LinearAlgebra.cpp, PyTorch's answers.


def inverted(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse, and info."""
    packed, pivots, info = lu_factored(matrix)
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return solved(packed, pivots, unit), info


@composes("aten::linalg_inv_ex.default")
def inv_ex(matrix: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return inverted(matrix)


@composes("aten::linalg_inv.default", "aten::inverse.default")
def inv(matrix: Tensor) -> Tensor:
    return inverted(matrix)[0]


def _solve(matrix: Tensor, right: Tensor, left: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X of A·X = B or X·A = B, the factors, and info. B is a vector, or a batch of them, where it has the shape."""
    vector = right.dim() == 1 or (matrix.dim() - 1 == right.dim() and right.shape == matrix.shape[:-1])
    columns = right.unsqueeze(-1) if vector else right
    packed, pivots, info = lu_factored(matrix if left else matrix.mT)
    result = solved(packed, pivots, columns) if left else solved(packed, pivots, columns.mT).mT
    return result.squeeze(-1) if vector else result, packed, pivots, info


@composes("aten::_linalg_solve_ex.default")
def solve_with_factors(
    matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _solve(matrix, right, left)


@composes("aten::linalg_solve_ex.default")
def solve_ex(matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    result, _, _, info = _solve(matrix, right, left)
    return result, info


@composes("aten::linalg_solve.default")
def solve(matrix: Tensor, right: Tensor, *, left: bool = True) -> Tensor:
    return _solve(matrix, right, left)[0]


@composes("aten::linalg_tensorinv.default")
def tensorinv(tensor: Tensor, ind: int = 2) -> Tensor:
    """The first `ind` axes are the rows of the matrix, the others its columns."""
    rows, columns = tensor.shape[:ind], tensor.shape[ind:]
    return inv(tensor.reshape(math.prod(rows), math.prod(columns))).reshape(*columns, *rows)


@composes("aten::linalg_tensorsolve.default")
def tensorsolve(tensor: Tensor, right: Tensor, dims: list[int] | None = None) -> Tensor:
    """The last axes of the tensor are the unknowns, as many numbers as `right` has."""
    moved = tensor.movedim(dims, list(range(tensor.dim() - len(dims), tensor.dim()))) if dims else tensor
    unknown = moved.shape[right.dim() :]
    count = math.prod(unknown)
    return solve(moved.reshape(count, count), right.reshape(count)).reshape(unknown)


def _diagonal(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sign that the swaps give the determinant, the diagonal of U, and the factors."""
    packed, pivots, _ = lu_factored(matrix)
    places = torch.arange(1, matrix.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    signs = 1 - 2 * (pivots != places).to(matrix.dtype)
    diagonal = matrix.new_zeros(matrix.shape[:-1]) if is_empty(matrix) else packed.diagonal(dim1=-2, dim2=-1)
    return _product(signs), diagonal, packed, pivots


def _product(numbers: Tensor) -> Tensor:
    """Of the last axis: ONNX Runtime has no such reduction for float64."""
    if is_empty(numbers):
        return torch.ones(numbers.shape[:-1], dtype=numbers.dtype, device=numbers.device)

    def step(k: Tensor, product: Tensor, numbers: Tensor) -> tuple[Tensor]:
        return (product * column(numbers, k),)

    return repeated(numbers.shape[-1], step, (torch.ones_like(numbers[..., :1]),), (numbers,))[0].squeeze(-1)


@composes("aten::_linalg_det.default")
def det_with_factors(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sign, diagonal, packed, pivots = _diagonal(matrix)
    return sign * _product(diagonal), packed, pivots


@composes("aten::linalg_det.default", "aten::det.default")
def det(matrix: Tensor) -> Tensor:
    return det_with_factors(matrix)[0]


@composes("aten::_linalg_slogdet.default")
def slogdet_with_factors(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sign, diagonal, packed, pivots = _diagonal(matrix)
    logarithm = torch.zeros(sign.shape, dtype=sign.dtype, device=sign.device)
    if not is_empty(diagonal):
        logarithm = diagonal.abs().log().sum(-1)
    return sign * _product(diagonal.sign()), logarithm, packed, pivots


@composes("aten::linalg_slogdet.default", "aten::slogdet.default")
def slogdet(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return slogdet_with_factors(matrix)[:2]


@composes("aten::logdet.default")
def logdet(matrix: Tensor) -> Tensor:
    sign, logarithm = slogdet(matrix)
    return torch.where(sign == -1, torch.full_like(logarithm, float("nan")), logarithm)


@composes("aten::linalg_matrix_power.default", "aten::matrix_power.default")
def matrix_power(matrix: Tensor, exponent: int) -> Tensor:
    """By squaring."""
    if exponent < 0:
        return matrix_power(inv(matrix), -exponent)
    if exponent == 0:
        return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand(matrix.shape).clone()
    half = matrix_power(matrix, exponent // 2) if exponent > 1 else None
    if half is None:
        return matrix.clone()
    return half @ half if exponent % 2 == 0 else half @ half @ matrix


# torch.linalg.lstsq
#
#     solution = V · diag(1/σ, 0 for those below rcond times the largest) · Uᵀ · B, A = U · diag(σ) · Vᵀ
#
# The shortest of the best solutions, which PyTorch's drivers come to in other ways. PyTorch's own cannot be captured:
# residuals are given only if all matrices have full rank. Here they are whenever there are more equations than
# unknowns; the driver gelsy, which is the default, gives none.
#
# Source of truth: PyTorch's answers and ATen's native/BatchLinearAlgebra.cpp.


@replaces("torch.linalg.lstsq")
def lstsq(input: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    vector = b.dim() == 1 or (input.dim() - 1 == b.dim() and b.shape == input.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    height, width = input.shape[-2:]
    share = torch.finfo(input.dtype).eps * max(height, width) if rcond is None else rcond
    u, values, vh = torch.linalg.svd(input, full_matrices=False)
    kept = values > share * values[..., :1]
    inverse = torch.where(kept, 1 / torch.where(kept, values, torch.ones_like(values)), torch.zeros_like(values))
    solution = vh.mT @ (inverse.unsqueeze(-1) * (u.mT @ right))
    empty = input.new_zeros(0)
    residuals = (
        (input @ solution - right).square().sum(-2) if height > width and driver not in (None, "gelsy") else empty
    )
    rank = kept.sum(-1) if driver != "gels" else empty.long()
    shown = values if driver in ("gelsd", "gelss") else empty
    answer: Any = torch.return_types.linalg_lstsq  # type: ignore[attr-defined]
    return answer([solution.squeeze(-1) if vector else solution, residuals, rank, shown])
