"""torch.cov, torch.corrcoef

    cov      = (x - mean) · diag(w) · (x - mean)ᵀ / (sum(w) - correction), observations weighted by w = f · a
    corrcoef = cov[i, j] / √(cov[i, i] · cov[j, j])

With weights a that are not counts, the correction is multiplied by sum(w · a) / sum(w). PyTorch's own look at the
values of the weights before they compute, which nothing that is captured can do; these take the weights as they are.

Source of truth: ATen's native/Correlation.cpp.
"""

from __future__ import annotations

from typing import Any

import torch


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    if input.dim() > 2:
        raise NotImplementedError("torch.cov of more than two axes")
    x = input if input.dim() == 2 else input.reshape(1, -1)
    if not x.is_floating_point():
        x = x.to(torch.get_default_dtype())
    weight = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weight is None:
        total = torch.full((), x.shape[1], dtype=x.dtype, device=x.device)
        mean = x.sum(1, keepdim=True) / total
        scaled = x - mean
    else:
        weight = weight.to(x.dtype) if not weight.is_floating_point() else weight
        total = weight.sum()
        mean = (x * weight).sum(1, keepdim=True) / total
        scaled = (x - mean) * weight
    if aweights is None or correction == 0:
        divisor = total - correction
    else:
        divisor = total - correction * (weight * aweights).sum() / total
    return (scaled @ (x - mean).transpose(0, 1) / divisor.clamp_min(0)).squeeze()


def corrcoef(input: Any) -> Any:
    c = cov(input)
    if c.dim() == 0:
        return c / c
    deviation = c.diagonal().sqrt()
    return (c / deviation.unsqueeze(1) / deviation).clamp(-1, 1)
