"""aten::cdist, aten::pdist, and what torch takes them apart into

    distance(a, b) = (Σ |aᵢ - bᵢ|ᵖ)^(1/p)     p = 0: how many differ, p = ∞: the largest

cdist of every row of one matrix to every row of the other, pdist of the pairs of one matrix, (0, 1), (0, 2) ... (1, 2).
For many rows and p = 2 PyTorch takes |a|² + |b|² - 2a·b, which needs no tensor of all differences; so does this, in 64
bits, where the distance of near points keeps its digits.

Source of truth: ATen's native/Distance.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchport.operators.registering import composes

_FEW = 25  # rows up to which PyTorch takes differences
_NEVER_BY_PRODUCTS = 2  # of compute_mode


@composes("aten::cdist.default", "aten::_cdist_forward.default")
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
    if p == 2 and compute_mode != _NEVER_BY_PRODUCTS and not (_is_few(x1) and _is_few(x2)):
        return _by_products(x1.double(), x2.double()).to(x1.dtype)
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@composes("aten::pdist.default", "aten::_pdist_forward.default")
def pdist(self: Any, p: float = 2.0) -> Any:
    first, second = _pairs(self.shape[0], self.device)
    difference = self.index_select(0, first) - self.index_select(0, second)
    return _norm(torch.nn.functional.pad(difference, (0, 0, 0, 1)), p)[:-1]  # one row has no pairs to reduce


def _is_few(x: Any) -> bool:
    rows = x.shape[-2]
    return isinstance(rows, int) and rows <= _FEW


def _by_products(x1: Any, x2: Any) -> Any:
    squares = (x1 * x1).sum(-1).unsqueeze(-1) + (x2 * x2).sum(-1).unsqueeze(-2)
    return (squares - 2 * (x1 @ x2.mT)).clamp(min=0).sqrt()


def _norm(difference: Any, p: float) -> Any:
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1 or difference.shape[-1] == 0:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def _pairs(count: Any, device: torch.device) -> tuple[Any, Any]:
    """Both rows of each pair. Row i begins at i·(2n - i - 1)/2; solved for i in floats, then put right by one."""
    place = torch.arange(count * (count - 1) // 2, device=device)
    odd = 2 * count - 1
    row = ((odd - (odd * odd - 8 * place).double().sqrt()) / 2).long()
    row = row - (_begin(row, count) > place).long()
    row = row + (_begin(row + 1, count) <= place).long()
    return row, place - _begin(row, count) + row + 1


def _begin(row: Any, count: Any) -> Any:
    return (row * (2 * count - 1 - row)) // 2
