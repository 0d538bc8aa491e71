"""aten::log1p, aten::special_xlog1py

    log(1 + x) = log(u) · x / (u - 1), u = 1 + x as it is rounded          xlog1py(x, y) = x · log(1 + y), 0 for x = 0

Torch's translation is Log(x + 1), of which nothing is left near zero: 1e-6 comes out as 9.5e-7. What rounding took from
u is given back by the quotient, which is one but for it (Kahan). Where u is one, x itself is the answer.

Source of truth: PyTorch's answers, which are the C library's log1p.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchport.operators.library.special_numbers import floating, instead, scalars


def log1p(x: Tensor) -> Tensor:
    """log(1 + x); complex numbers are left to torch."""
    if x.is_complex():
        return NotImplemented
    x = x.to(floating(x))
    if x.dtype in (torch.float16, torch.bfloat16):
        return log1p(x.float()).to(x.dtype)
    u = 1 + x
    plain = (u == 1) | (u <= 0) | torch.isinf(u)
    known = instead(u, plain, 2.0)
    near = torch.log(known) * (x / (known - 1))
    return torch.where(u == 1, x, torch.where(plain, torch.log(u), near))


def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """x · log(1 + y)"""
    dtype = floating(x, y)
    x, y = torch.broadcast_tensors(x.to(dtype), y.to(dtype))
    return torch.where((x == 0) & ~torch.isnan(y), torch.zeros_like(x), x * log1p(y))


def compositions() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    return {
        aten.log1p.default: log1p,
        aten.special_xlog1py.default: xlog1py,
        **scalars(xlog1py, aten.special_xlog1py, "self_scalar", "other_scalar"),
    }
