"""aten::linalg_matrix_norm, aten::linalg_norm, aten::linalg_cond, aten::nuclear_norm, linalg_vector_norm in part.

    2, -2 and "nuc": the largest, the least and the sum of the singular values;   1, -1, inf, -inf: of columns' or rows'
    sums of absolute values;   cond(A) = ‖A‖·‖A⁻¹‖;   order 0 of a vector counts what is not zero

Torch breaks them up into a singular value decomposition that has no translation, and takes order 0 of a vector for its
sum. What torch translates well stays with it.

Source of truth: aten/src/ATen/native/LinearAlgebra.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchport.operators.composing import only_where
from torchport.operators.library.inverse import inverted
from torchport.operators.library.svd import svdvals
from torchport.operators.library.triangular import is_empty
from torchport.operators.registering import composes

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
