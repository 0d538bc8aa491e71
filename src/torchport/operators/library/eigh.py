"""aten::linalg_eigh, aten::linalg_eigvalsh: eigenvalues of a symmetric matrix by Jacobi's rotations.

    A ← Jᵀ·A·J until it is diagonal; the product of the J are the eigenvectors

Torch has no translation and ONNX no operator. Eigenvalues come in ascending order. An eigenvector is known up to its
sign, and LAPACK's signs come out of its own way to compute them: here the largest entry of each is positive. A model
whose answer depends on the signs is refused by its proof.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.householder import scale
from torchport.operators.library.jacobi import LARGEST, moved_on, rotated, rotation, rounds
from torchport.operators.library.loops import repeated
from torchport.operators.library.triangular import is_empty, real, side
from torchport.operators.registering import composes


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
