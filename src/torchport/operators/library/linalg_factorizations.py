"""Triangular systems by substitution, Cholesky and LU factorizations, and the loop that linear algebra shares."""

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
