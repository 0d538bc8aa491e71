"""Dynamically quantized layers: the input is quantized by its own extremes while the model runs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from torchport.capture.repairs.quantized_tensors import Packed

_SMALLEST_SCALE = 6.1e-5  # SMALL_SCALE_THRESHOLD in QuantUtils.h


def linear(x: Tensor, packed: Packed) -> Tensor:
    return functional.linear(x, packed.floats(), packed.bias)


def linear_dynamic(x: Tensor, packed: Packed, reduce_range: bool = False) -> Tensor:
    """The input quantized by its own extremes, then a product of integers."""
    weight = packed.weight
    values, scale, zero_point = _quantize_dynamically(x, reduce_range=reduce_range)
    zeros = weight.zero_point.to(weight.values.dtype)
    zeros = zeros if weight.axis is not None else zeros.squeeze(0)
    sums = torch.ops.torchport.matmul_integer(values, weight.values.t(), zero_point, zeros)
    answer: Tensor = sums.float() * (scale * weight.scale)
    return answer if packed.bias is None else answer + packed.bias


def _quantize_dynamically(x: Tensor, *, reduce_range: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, scale and zero point by the numbers themselves, zero among them."""
    top = 127 if reduce_range else 255
    low, high = x.min().clamp(max=0).double(), x.max().clamp(min=0).double()
    scale = (high - low) / top
    scale = torch.where(scale.float() == 0, 0.1, scale)
    zero_point = torch.round(-low / scale).clamp(0, top).float()
    scale = scale.clamp(min=_SMALLEST_SCALE).float()
    values = (torch.round(x * (1 / scale)) + zero_point).clamp(0, top)
    return values.to(torch.uint8), scale, zero_point.to(torch.uint8)
