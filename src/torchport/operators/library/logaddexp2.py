"""aten::logaddexp2, aten::logaddexp

    log(eˣ + eʸ) = m + log1p(e^-|x - y|), m = max(x, y)              the same with 2ˣ and the logarithm to base 2

Torch's translation of the first takes the powers as they are, which overflow from 128 on. Equal infinities have no
difference and are themselves the answer.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchport.operators.library.log1p import log1p
from torchport.operators.library.special_numbers import floating
from torchport.operators.registering import composes


@composes("aten::logaddexp.default")
def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    return _sum(self, other, 1.0)


@composes("aten::logaddexp2.default")
def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    return _sum(self, other, math.log(2))


def _sum(self: Tensor, other: Tensor, log_of_base: float) -> Tensor:
    if self.is_complex() or other.is_complex():
        return NotImplemented
    dtype = floating(self, other)
    x, y = torch.broadcast_tensors(self.to(dtype), other.to(dtype))
    largest = torch.maximum(x, y)
    difference = torch.where(torch.isinf(x) & (x == y), torch.zeros_like(x), torch.abs(x - y))
    result = largest + log1p(torch.exp(-difference * log_of_base)) / log_of_base
    return torch.where(torch.isinf(largest), largest, result)
