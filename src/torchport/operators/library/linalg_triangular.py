"""Triangular systems by substitution, and the loop that compositions of linear algebra share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchport.operators.registration import composes

# aten::linalg_solve_triangular, aten::triangular_solve: L·X = B by substitution.
#
#     xᵢ = bᵢ / lᵢᵢ, then every later row of B loses its share of it: bⱼ -= lⱼᵢ·xᵢ
#
# Torch has no translation and ONNX no operator. The rows are steps of a loop; all sizes may vary. A zero on the
# diagonal divides by zero, as in LAPACK.
#
# Source of truth: PyTorch's answers, which are BLAS's trsm.


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


# A loop inside a composition, for what is computed step by step: an ONNX Loop, however many steps there are.
#
# Written out, a factorization of a 12 x 12 matrix takes the exporter half a minute; as a loop it takes as long for any
# side, and the side may vary. A step sees whole matrices and its own number, and chooses what it changes by comparing
# places with it.


def repeated(
    count: Any,
    step: Callable[..., tuple[Tensor, ...]],
    carried: tuple[Tensor, ...],
    fixed: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """What is carried after `count` times carried = step(k, *carried, *fixed); k is a tensor, 0 at first.

    The count may be a symbolic size. A step must take its tensors from its arguments, not from the function around it.
    """
    if isinstance(count, int) and count == 0:
        return carried
    device = carried[0].device
    limit = torch.full((), count, dtype=torch.int64, device=device)

    def goes_on(k: Tensor, *rest: Tensor) -> Tensor:
        return k < rest[-1]

    def body(k: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return k + 1, *(tensor.contiguous() for tensor in step(k, *rest[:-1]))

    start = (torch.zeros((), dtype=torch.int64, device=device), *(_fresh(tensor) for tensor in carried))
    loop: Any = torch.ops.higher_order.while_loop
    return tuple(loop(goes_on, body, start, (*(_fresh(tensor) for tensor in fixed), limit))[1:])


def _fresh(tensor: Tensor) -> Tensor:
    """A copy without gaps: what goes in must lie in memory as what comes out, and strides have no translation."""
    return tensor.clone(memory_format=torch.contiguous_format)


def row(matrix: Tensor, k: Tensor) -> Tensor:
    """Row k, as a matrix of one row."""
    return matrix.index_select(-2, k.reshape(1))


def column(matrix: Tensor, k: Tensor) -> Tensor:
    """Column k, as a matrix of one column; of a vector, entry k."""
    return matrix.index_select(-1, k.reshape(1))


def places(tensor: Tensor, axis: int) -> Tensor:
    """0, 1, 2, ... along an axis, to be compared with k: -1 for columns, -2 for rows."""
    numbers = torch.arange(tensor.shape[axis], device=tensor.device)
    return numbers if axis == -1 else numbers.unsqueeze(-1)
