"""aten::linalg_solve_triangular, aten::triangular_solve: L·X = B by substitution.

    xᵢ = bᵢ / lᵢᵢ, then every later row of B loses its share of it: bⱼ -= lⱼᵢ·xᵢ

Torch has no translation and ONNX no operator. The rows are steps of a loop; all sizes may vary. A zero on the diagonal
divides by zero, as in LAPACK.

Source of truth: PyTorch's answers, which are BLAS's trsm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchport.operators.library.loops import column, places, repeated, row
from torchport.operators.registering import composes


def side(size: int | torch.SymInt, largest: int) -> int:
    """A side of a matrix as a number the steps can be counted with."""
    if not isinstance(size, int):
        raise NotImplementedError("a matrix is factored step by step; with a side that varies the steps are not known")
    if size > largest:
        raise NotImplementedError(f"a matrix is factored step by step; {size} are too many, {largest} at most")
    return size


def real(matrix: Tensor) -> Tensor:
    """The matrix, if it has the numbers that these compositions are written for."""
    if matrix.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"matrices of {matrix.dtype} are not factored; float32 and float64 are")
    return matrix


def is_empty(tensor: Tensor) -> bool:
    """Without a number, as far as is known: ONNX Runtime gives reductions of such tensors the wrong shape."""
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def substituted(matrix: Tensor, right: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    """X of matrix·X = right, looking at one triangle only; batches are broadcast."""
    batch = torch.broadcast_shapes(real(matrix).shape[:-2], right.shape[:-2])
    solution = right.expand(*batch, *right.shape[-2:])
    if is_empty(matrix) or is_empty(right):
        return solution.clone()

    def step(k: Tensor, rest: Tensor, matrix: Tensor) -> tuple[Tensor]:
        place = matrix.shape[-1] - 1 - k if upper else k
        multiples = column(matrix, place)
        solved = row(rest, place)
        if not unit:
            solved = solved / row(multiples, place)
        rows = places(rest, -2)
        later = rows < place if upper else rows > place
        return (torch.where(later, rest - multiples * solved, torch.where(rows == place, solved, rest)),)

    return repeated(matrix.shape[-1], step, (solution,), (matrix,))[0]


@composes("aten::linalg_solve_triangular.default")
def solve_triangular(
    matrix: Tensor, right: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if left:
        return substituted(matrix, right, upper=upper, unit=unitriangular)
    return substituted(matrix.mT, right.mT, upper=not upper, unit=unitriangular).mT


@composes("aten::triangular_solve.default")
def triangular_solve(
    right: Tensor, matrix: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    turned = matrix.mT if transpose else matrix
    solution = substituted(turned, right, upper=upper != transpose, unit=unitriangular)
    return solution, matrix.expand(*batch, *matrix.shape[-2:]).clone()
