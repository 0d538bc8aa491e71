"""aten::linalg_svd and what PyTorch makes of it: singular values, the pseudoinverse, the rank.

    A·V = W, the product of rotations V chosen so that the columns of W are orthogonal (one-sided Jacobi):
    the singular values are their lengths, U their directions;   A⁺ = V·Σ⁻²·Wᵀ, without the values that count as zero

Torch has no translation and ONNX no operator. U is the Q of W's QR factorization, its columns turned to W's: so it is
orthogonal where singular values are zero, and can be completed to a square. U and V are known up to a common sign of
their columns, and LAPACK's signs come out of its own way to compute them: here the largest entry of each column of V
is positive. A model whose answer depends on the signs is refused by its proof.

Source of truth: aten/src/ATen/native/LinearAlgebra.cpp for tolerances, PyTorch's answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.eigh import diagonalized
from torchport.operators.library.householder import qr, scale
from torchport.operators.library.jacobi import LARGEST, moved_on, rotated, rotation, rounds
from torchport.operators.library.loops import repeated
from torchport.operators.library.triangular import is_empty, real, side
from torchport.operators.registering import composes

TALLEST = 4096  # the larger of the sides; only the smaller one counts in steps

Tolerance = Tensor | float | None


def sides(matrix: Tensor) -> tuple[int, int]:
    """Which of them is the smaller one must be known."""
    return side(matrix.shape[-2], TALLEST), side(matrix.shape[-1], TALLEST)


def orthogonalized(matrix: Tensor, *, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values in no order, W and V of a matrix that is not wider than high; V only where asked for."""
    count = side(real(matrix).shape[-1], LARGEST)
    size = scale(matrix)
    work = matrix / size
    unit = torch.eye(count, dtype=matrix.dtype, device=matrix.device)
    basis = unit.expand(*matrix.shape[:-2], count, count)

    def step(_: Tensor, work: Tensor, *basis: Tensor) -> tuple[Tensor, ...]:
        cosine, sine = rotation((work * work).sum(-2), (work * work.flip(-1)).sum(-2))
        return tuple(moved_on(rotated(matrix, cosine, sine)) for matrix in (work, *basis))

    work, *turned = repeated(rounds(count, matrix.dtype), step, (work, basis) if vectors else (work,))
    return (work * work).sum(-2).sqrt() * size.squeeze(-1), work * size, turned[0] if vectors else basis


@composes("aten::linalg_svdvals.default")
def svdvals(matrix: Tensor, *, driver: str | None = None) -> Tensor:
    height, width = sides(matrix)
    if is_empty(matrix):
        return matrix.new_zeros((*matrix.shape[:-2], min(height, width)))
    values = orthogonalized(matrix if height >= width else matrix.mT, vectors=False)[0]
    return values.sort(-1, descending=True).values


def _decomposed(matrix: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, Σ and V of a matrix that is not wider than high."""
    height, width = sides(matrix)
    if is_empty(matrix):
        unit = torch.eye(height, height if full else width, dtype=matrix.dtype, device=matrix.device)
        left = unit.expand(*matrix.shape[:-2], *unit.shape).clone()
        return left, matrix.new_zeros((*matrix.shape[:-2], width)), matrix.new_zeros((*matrix.shape[:-2], width, width))
    values, work, basis = orthogonalized(matrix, vectors=True)
    values, order = values.sort(-1, descending=True)
    work = work.gather(-1, order.unsqueeze(-2).expand(work.shape))
    basis = basis.gather(-1, order.unsqueeze(-2).expand(basis.shape))
    largest = basis.gather(-2, basis.abs().argmax(-2, keepdim=True))
    basis, work = torch.where(largest < 0, -basis, basis), torch.where(largest < 0, -work, work)
    left, upper = qr(work, "complete" if full else "reduced")
    turned = torch.nn.functional.pad(upper.diagonal(dim1=-2, dim2=-1) < 0, (0, left.shape[-1] - width))
    return torch.where(turned.unsqueeze(-2), -left, left), values, basis


@composes("aten::linalg_svd.default")
def linalg_svd(
    matrix: Tensor, full_matrices: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    height, width = sides(matrix)
    if height >= width:
        left, values, right = _decomposed(matrix, full_matrices)
    else:
        right, values, left = _decomposed(matrix.mT, full_matrices)
    return left, values, right.mT


@composes("aten::_linalg_svd.default")
def svd_or_values(
    matrix: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if compute_uv:
        return linalg_svd(matrix, full_matrices)
    return matrix.new_zeros((0,)), svdvals(matrix), matrix.new_zeros((0,))


@composes("aten::svd.default")
def svd(matrix: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The old form; without vectors it gives zeros in their place."""
    if compute_uv:
        left, values, right = linalg_svd(matrix, not some)
        return left, values, right.mT
    batch, (height, width) = matrix.shape[:-2], matrix.shape[-2:]
    return matrix.new_zeros((*batch, height, height)), svdvals(matrix), matrix.new_zeros((*batch, width, width))


def _threshold(matrix: Tensor, largest: Tensor, absolute: Tolerance, relative: Tolerance) -> Tensor:
    """What counts as zero; `largest` has a last axis of one."""
    default = torch.finfo(matrix.dtype).eps * max(matrix.shape[-2:])
    if relative is None:
        if absolute is None:
            relative = default
        elif isinstance(absolute, Tensor):
            relative = torch.where(absolute > 0, 0.0, default).to(largest.dtype)
        else:
            relative = 0.0 if absolute > 0 else default
    numbers = [_column(t, largest) for t in (0.0 if absolute is None else absolute, relative)]
    return torch.maximum(numbers[0], numbers[1] * largest)


def _column(tolerance: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(tolerance, Tensor):
        return tolerance.to(like.dtype).unsqueeze(-1)
    return torch.full_like(like, tolerance)


@composes("aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_pinv.atol_rtol_float")
def pinv(matrix: Tensor, *, atol: Tolerance = None, rtol: Tolerance = None, hermitian: bool = False) -> Tensor:
    height, width = sides(matrix)
    if is_empty(matrix):
        return matrix.new_zeros((*matrix.shape[:-2], width, height))
    if height < width:
        return pinv(matrix.mT, atol=atol, rtol=rtol).mT
    if hermitian:
        values, basis = diagonalized(matrix, vectors=True)
        work = basis
    else:
        values, work, basis = orthogonalized(matrix, vectors=True)
    sizes = values.abs()
    kept = sizes > _threshold(matrix, sizes.amax(-1, keepdim=True), atol, rtol)
    inverse = torch.where(kept, 1 / torch.where(kept, values, torch.ones_like(values)), torch.zeros_like(values))
    inverse = inverse.unsqueeze(-2)
    return (basis * inverse) @ (work if hermitian else work * inverse).mT


@composes("aten::linalg_pinv.default", "aten::linalg_pinv.rcond_tensor")
def old_pinv(matrix: Tensor, rcond: float | Tensor, hermitian: bool = False) -> Tensor:
    return pinv(matrix, atol=0.0, rtol=rcond, hermitian=hermitian)


@composes("aten::pinverse.default")
def pinverse(matrix: Tensor, rcond: float = 1e-15) -> Tensor:
    return pinv(matrix, atol=0.0, rtol=rcond)


@composes("aten::linalg_matrix_rank.atol_rtol_tensor", "aten::linalg_matrix_rank.atol_rtol_float")
def matrix_rank(matrix: Tensor, *, atol: Tolerance = None, rtol: Tolerance = None, hermitian: bool = False) -> Tensor:
    if is_empty(matrix):
        return torch.zeros(matrix.shape[:-2], dtype=torch.int64, device=matrix.device)
    values = diagonalized(matrix, vectors=False)[0].abs() if hermitian else svdvals(matrix)
    return (values > _threshold(matrix, values.amax(-1, keepdim=True), atol, rtol)).sum(-1)


@composes("aten::linalg_matrix_rank.default", "aten::linalg_matrix_rank.tol_tensor")
def old_matrix_rank(matrix: Tensor, tol: float | Tensor, hermitian: bool = False) -> Tensor:
    return matrix_rank(matrix, atol=tol, rtol=0.0, hermitian=hermitian)
