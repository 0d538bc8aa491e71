"""Eigenvalues and singular values by Jacobi's rotations."""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.linalg_factorizations import is_empty, real, repeated, side
from torchport.operators.library.linalg_qr import qr, scale
from torchport.operators.registration import composes

# aten::linalg_eigh, aten::linalg_eigvalsh: eigenvalues of a symmetric matrix by Jacobi's rotations.
#
#     A ← Jᵀ·A·J until it is diagonal; the product of the J are the eigenvectors
#
# Torch has no translation and ONNX no operator. Eigenvalues come in ascending order. An eigenvector is known up to its
# sign, and LAPACK's signs come out of its own way to compute them: here the largest entry of each is positive. A model
# whose answer depends on the signs is refused by its proof.
#
# Source of truth: PyTorch's answers.


def diagonalized(matrix: Tensor, uplo: str = "L", *, vectors: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues in no order, and the eigenvectors as columns, or an empty tensor."""
    count = side(real(matrix).shape[-1], LARGEST)
    none = matrix.new_zeros((0,))
    if is_empty(matrix):
        return matrix.new_zeros(matrix.shape[:-1]), matrix.clone() if vectors else none
    triangle = matrix.tril() if uplo.upper() == "L" else matrix.triu().mT
    size = scale(triangle)
    work = (triangle + triangle.tril(-1).mT) / size
    unit = torch.eye(count, dtype=matrix.dtype, device=matrix.device)

    def step(_: Tensor, work: Tensor, *basis: Tensor) -> tuple[Tensor, ...]:
        unit = torch.eye(count, dtype=work.dtype, device=work.device)
        entries = work * unit.flip(-1)
        cross = (entries.sum(-1) + entries.sum(-2)) / 2  # the same number for both partners, or they drift apart
        cosine, sine = rotation((work * unit).sum(-1), cross)
        work = rotated(rotated(work, cosine, sine).mT, cosine, sine)
        return moved_on(moved_on(work).mT), *(moved_on(rotated(b, cosine, sine)) for b in basis)

    work, *basis = repeated(rounds(count, matrix.dtype), step, (work, unit.expand(work.shape)) if vectors else (work,))
    return (work * unit).sum(-1) * size.squeeze(-1), basis[0] if vectors else none


@composes("aten::linalg_eigh.default")
def eigh(matrix: Tensor, uplo: str = "L") -> tuple[Tensor, Tensor]:
    values, basis = diagonalized(matrix, uplo, vectors=True)
    if is_empty(matrix):
        return values, basis
    values, order = values.sort(-1)
    basis = basis.gather(-1, order.unsqueeze(-2).expand(basis.shape))
    largest = basis.gather(-2, basis.abs().argmax(-2, keepdim=True))
    return values, torch.where(largest < 0, -basis, basis)


@composes("aten::linalg_eigvalsh.default")
def eigvalsh(matrix: Tensor, uplo: str = "L") -> Tensor:
    values = diagonalized(matrix, uplo, vectors=False)[0]
    return values if is_empty(matrix) else values.sort(-1).values


@composes("aten::_linalg_eigh.default")
def eigh_or_values(matrix: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    return eigh(matrix, uplo) if compute_v else (eigvalsh(matrix, uplo), matrix.new_zeros((0,)))


# aten::linalg_svd and what PyTorch makes of it: singular values, the pseudoinverse, the rank.
#
#     A·V = W, the product of rotations V chosen so that the columns of W are orthogonal (one-sided Jacobi):
#     the singular values are their lengths, U their directions;   A⁺ = V·Σ⁻²·Wᵀ, without the values that count as zero
#
# Torch has no translation and ONNX no operator. U is the Q of W's QR factorization, its columns turned to W's: so it is
# orthogonal where singular values are zero, and can be completed to a square. U and V are known up to a common sign of
# their columns, and LAPACK's signs come out of its own way to compute them: here the largest entry of each column of V
# is positive. A model whose answer depends on the signs is refused by its proof.
#
# Source of truth: aten/src/ATen/native/LinearAlgebra.cpp for tolerances, PyTorch's answers.

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


# Jacobi's method, which eigh.py and svd.py share: rotations of two columns at a time until all are orthogonal.
#
# A sweep rotates every pair once. The pairs are taken as in a tournament: in a round the columns are paired from both
# ends, so that the partners are the columns in reverse, and a round is a handful of nodes for all pairs together; then
# the columns move on by one place. After a sweep all are where they were. Column j becomes cⱼ·aⱼ + sⱼ·a₍partner of j₎.
#
# Convergence is quadratic at the end; the number of sweeps is fixed, because a graph does not look at the numbers.

LARGEST = 64  # columns; for more the number of sweeps was not tried


def rounds(count: int, dtype: torch.dtype) -> int:
    """As many as bring any matrix that was tried to its last digit, also with rows of very different sizes."""
    if dtype is torch.float64:
        sweeps = 8 if count <= 8 else 12 if count <= 16 else 18
    else:
        sweeps = 7 if count <= 8 else 9 if count <= 16 else 12
    return sweeps * (count - 1 + count % 2) if count > 1 else 0


def rotation(own: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """c and s of each column: `own` are the squares of the columns, or the diagonal; `cross` what is to vanish.

    t = sign(d) · 2·cross / (|d| + √(d² + 4·cross²)), the smaller angle; d is the difference of the two in `own`.
    A column's partner turns by the opposite angle; where both are equal the first of the two counts as the larger.
    """
    count = own.shape[-1]
    places = 2 * torch.arange(count, device=own.device)
    difference = own - own.flip(-1)
    positive = (difference > 0) | ((difference == 0) & (places < count - 1))
    twice = 2 * cross
    below = difference.abs() + (difference * difference + twice * twice).sqrt()
    idle = (places == count - 1) | (below == 0)  # the one in the middle has no partner
    tangent = torch.where(idle, torch.zeros_like(twice), twice / torch.where(idle, torch.ones_like(below), below))
    tangent = torch.where(positive, tangent, -tangent)
    cosine = 1 / (1 + tangent * tangent).sqrt()
    return cosine, tangent * cosine


def rotated(matrix: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The columns, each with its share of its partner's."""
    return matrix * cosine.unsqueeze(-2) + matrix.flip(-1) * sine.unsqueeze(-2)


def moved_on(matrix: Tensor) -> Tensor:
    """The columns for the next round: the last comes to the front; of an even number the first stays where it is."""
    stays = 1 - matrix.shape[-1] % 2
    return torch.cat([matrix[..., :stays], matrix[..., -1:], matrix[..., stays:-1]], -1)
