"""Inverse, determinant, linear systems and least squares; norms, the matrix exponential, Vandermonde matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchport.operators.composition import only_where
from torchport.operators.library.linalg_eigen import svdvals
from torchport.operators.library.linalg_factorizations import column, is_empty, lu_factored, real, repeated, solved
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


# aten::linalg_matrix_norm, aten::linalg_norm, aten::linalg_cond, aten::nuclear_norm, linalg_vector_norm in part.
#
#   2, -2 and "nuc": the largest, the least and the sum of the singular values;   1, -1, inf, -inf: of columns' or rows'
#   sums of absolute values;   cond(A) = ‖A‖·‖A⁻¹‖;   order 0 of a vector counts what is not zero
#
# Torch breaks them up into a singular value decomposition that has no translation, and takes order 0 of a vector for
# its sum. What torch translates well stays with it.
#
# Source of truth: aten/src/ATen/native/LinearAlgebra.cpp.

Order = float | str


@composes("aten::linalg_matrix_norm.default", "aten::linalg_matrix_norm.str_ord")
def matrix_norm(
    tensor: Tensor,
    order: Order = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    tensor = tensor if dtype is None else tensor.to(dtype)
    matrix = tensor.movedim(tuple(dim), (-2, -1))
    result = _norm(matrix, order)
    if not keepdim:
        return result
    for axis in sorted(d % tensor.dim() for d in dim):
        result = result.unsqueeze(axis)
    return result


def _norm(matrix: Tensor, order: Order) -> Tensor:
    """Of the last two axes."""
    if order == "fro":
        return torch.linalg.vector_norm(matrix, 2, (-2, -1))
    if order in ("nuc", 2, -2):
        values = svdvals(matrix)
        if order == "nuc":
            return values.sum(-1)
        return values[..., 0 if order == 2 else -1]
    if order not in (1, -1, math.inf, -math.inf):
        raise NotImplementedError(f"a matrix norm of order {order} is not known")
    sums = matrix.abs().sum(-2 if abs(float(order)) == 1 else -1)
    return sums.amax(-1) if float(order) > 0 else sums.amin(-1)


@composes("aten::linalg_norm.default", "aten::linalg_norm.ord_str")
def norm(
    tensor: Tensor,
    order: Order | None = None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Of a matrix where an order is given for two axes; of all numbers in a row without order and axes."""
    axes = dim if dim is not None else None if order is None else range(tensor.dim())
    if order is not None and axes is not None and (len(axes) == 2 or isinstance(order, str)):
        return matrix_norm(tensor, order, tuple(axes), keepdim, dtype=dtype)
    power = 2 if order is None else order
    counted = vector_norm(tensor, power, dim, keepdim, dtype=dtype)
    if counted is not NotImplemented:
        return counted
    return torch.linalg.vector_norm(tensor, power, dim, keepdim, dtype=dtype)


def _applies(tensor: Tensor, order: Any = 2, *_: Any, **__: Any) -> bool:
    return not tensor.is_complex() and bool(order == 0 or tensor.dim() == 0)


@composes("aten::linalg_vector_norm.default")
@only_where(_applies)
def vector_norm(
    tensor: Tensor,
    order: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Of order 0: how many are not zero. Of a single number, whose axis ONNX does not let be called 0: its size."""
    if order != 0:
        return tensor.to(dtype or tensor.dtype).abs()
    axes = tuple(dim) if dim else tuple(range(tensor.dim()))
    there = (tensor != 0).to(dtype or tensor.dtype)
    return there.sum(axes, keepdim=keepdim) if axes else there


@composes("aten::linalg_cond.default", "aten::linalg_cond.p_str")
def cond(matrix: Tensor, order: Order | None = None) -> Tensor:
    if is_empty(matrix):
        return matrix.new_zeros(matrix.shape[:-2])
    if order is None or order in (2, -2):
        values = svdvals(matrix)
        largest, least = values[..., 0], values[..., -1]
        return least / largest if order == -2 else largest / least
    inverse, info = inverted(matrix)
    product = _norm(matrix, order) * _norm(inverse, order)
    if order == "nuc":
        return product
    return torch.where(info != 0, torch.full_like(product, math.inf), product)


@composes("aten::nuclear_norm.default")
def nuclear_norm(matrix: Tensor, keepdim: bool = False) -> Tensor:
    return matrix_norm(matrix, "nuc", (0, 1), keepdim)


@composes("aten::nuclear_norm.dim")
def nuclear_norm_of(tensor: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    return matrix_norm(tensor, "nuc", dim, keepdim)


# aten::linalg_matrix_exp, aten::matrix_exp
#
#   e^A = (e^(A/2ˢ))^(2ˢ), s such that the norm of A/2ˢ is at most one, and its exponential the Taylor sum up to A¹⁸/18!
#
# Torch has no translation and ONNX no operator. The next term is 1/19! = 8e-18, below float64's last digit. How often
# to square depends on the numbers: every matrix goes through all the squarings, and keeps only the first s of them. The
# side of the matrix may vary.
#
# A square is written as products and a sum: where the exponential is too large for its type, PyTorch's matrix product
# gives infinities of both signs and hence NaN, and ONNX Runtime's, which adds before it rounds, gives infinities.
#
# Source of truth: PyTorch's answers; aten/src/ATen/native/LinearAlgebra.cpp sums the same series.

DEGREE = 18
SQUARINGS = 24  # for norms up to 2²⁴, where float32 holds no exponential but one of a very special matrix


@composes("aten::linalg_matrix_exp.default", "aten::matrix_exp.default")
def matrix_exp(matrix: Tensor) -> Tensor:
    if is_empty(real(matrix)):
        return matrix.clone()
    norm = matrix.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = norm.log2().ceil().clamp(min=0, max=SQUARINGS)
    small = matrix * (-halvings).exp2()

    def term(k: Tensor, result: Tensor, small: Tensor) -> tuple[Tensor]:
        unit = torch.eye(small.shape[-1], dtype=small.dtype, device=small.device)
        return (unit + small @ result / (DEGREE - k),)

    def square(k: Tensor, result: Tensor, halvings: Tensor) -> tuple[Tensor]:
        squared = (result.unsqueeze(-1) * result.unsqueeze(-3)).sum(-2)
        return (torch.where(halvings > k, squared, result),)

    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    (result,) = repeated(DEGREE, term, (unit.expand(matrix.shape),), (small,))
    return repeated(SQUARINGS, square, (result,), (halvings,))[0]


# aten::linalg_vander: the powers xᵢʲ of every number, j = 0 ... N-1.
#
# Torch breaks it up into a product that has no translation for one number; powers have one, and N may be a size that
# varies. Whole numbers give int64, as in PyTorch.
#
# Source of truth: PyTorch's answers.


@composes("aten::linalg_vander.default")
def vander(numbers: Tensor, *, N: Any = None) -> Tensor:  # noqa: N803 - PyTorch's name; a size, which may be symbolic
    numbers = numbers if numbers.is_floating_point() else numbers.to(torch.int64)
    numbers = numbers if numbers.dim() else numbers.unsqueeze(0)  # one number is a vector of one
    count = numbers.shape[-1] if N is None else N
    return numbers.unsqueeze(-1) ** torch.arange(count, dtype=numbers.dtype, device=numbers.device)
