"""What the special functions share: they are computed in float64 and given back in PyTorch's type.

Recurrences and reflections lose a few digits. In float64 that does not show in float32, which leaves the formulas
plain: none needs two forms for two precisions. ONNX Runtime has no float64 Erf, Tan or Acos, so none is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from torch import Tensor

from torchport.operators.registration import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def floating(*tensors: Tensor) -> torch.dtype:
    """The type PyTorch's special functions give: promoted, and whole numbers give the default float."""
    dtype = torch.result_type(tensors[0], tensors[-1])
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def in_double(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of one or two tensors, computed in float64."""

    @functools.wraps(function)
    def run(*tensors: Tensor) -> Tensor:
        return function(*(t.to(torch.float64) for t in tensors)).to(floating(*tensors))

    return run


def of_number_and_tensor(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of two tensors with a number in place of the first."""
    return lambda number, tensor: function(as_tensor(number, tensor), tensor)


def of_tensor_and_number(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of two tensors with a number in place of the second."""
    return lambda tensor, number: function(tensor, as_tensor(number, tensor))


def as_tensor(number: Any, like: Tensor) -> Tensor:
    """A number as a tensor without axes, of the type PyTorch takes it for beside this one."""
    return torch.scalar_tensor(number, dtype=torch.result_type(like, number), device=like.device)


_library = torch.library.Library("torchport", "FRAGMENT")
_library.define("polynomial(Tensor x, float[] coefficients) -> Tensor")


@torch.library.register_fake("torchport::polynomial", lib=_library)
def _polynomial_shape(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    return torch.empty_like(x)


@torch.library.impl("torchport::polynomial", "CompositeExplicitAutograd", lib=_library)
def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


@translates("torchport::polynomial.default")
def _polynomial_nodes(x: Any, coefficients: Sequence[float]) -> Any:
    """Translate one call, by Horner's rule."""
    *rest, total = (op.Constant(value=ir.tensor(c, dtype=x.dtype)) for c in coefficients)
    for coefficient in reversed(rest):
        total = op.Add(op.Mul(total, x), coefficient)
    return total


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The lowest power first. An operator of its own: traced term by term, a call takes seconds."""
    result: Tensor = torch.ops.torchport.polynomial(x, list(coefficients))
    return result


def instead(x: Tensor, where: Tensor, number: float) -> Tensor:
    """`x` with a number in range where the other branch is taken."""
    return torch.where(where, torch.full_like(x, number), x)


def is_whole(x: Tensor) -> Tensor:
    return x == torch.floor(x)


def nan_where(condition: Tensor, x: Tensor) -> Tensor:
    return torch.where(condition, torch.full_like(x, torch.nan), x)


def sin_pi(x: Tensor) -> Tensor:
    """sin(πx), by the distance to the nearest whole number: π itself is rounded."""
    near = torch.round(x)
    odd = near - 2 * torch.floor(near / 2)
    return torch.sin(torch.pi * (x - near)) * (1 - 2 * odd)
