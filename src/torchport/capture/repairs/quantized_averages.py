"""Averages of quantized tensors: pooling, mean, bilinear interpolation.

PyTorch takes them of the integers and rounds to the nearest. Halves are common, and go to the even neighbor: before the
zero point is added, or after, which differs where that is odd. Which of the two, tried out on torch 2.13:

- after, in ATen's own kernels:                      round(average + zero point)
- before, in QNNPACK's and in the vectorized ones:   round(average) + zero point

QNNPACK has kernels for pools by a window and for those over everything; the last multiply the sum by a float number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchport.capture.repairs.quantized_tensors import Quantized

NAMES = {
    *(f"{kind}_pool{n}d" for kind in ("avg", "adaptive_avg") for n in (1, 2, 3)),
    *("mean", "interpolate"),
}
_VECTOR = 8  # channels that are added up at once, where they come last, as behind a convolution


def averaged(func: Any, x: Quantized, *args: Any, **kwargs: Any) -> Quantized:
    name = func.__name__
    qnnpack = torch.backends.quantized.engine == "qnnpack"
    if qnnpack and _over_everything(name, x, *args, **kwargs):
        return _rounded(x, _by_multiplier(func, x, *args, **kwargs), before_zero=True)
    vectorized = name == "avg_pool3d" or (name == "avg_pool2d" and x.shape[1] >= _VECTOR)
    before_zero = vectorized or (qnnpack and name in ("avg_pool1d", "avg_pool2d"))
    return _rounded(x, func(_centered(x), *args, **kwargs), before_zero=before_zero)


def _over_everything(name: str, x: Quantized, *args: Any, **kwargs: Any) -> bool:
    """Whether QNNPACK averages all there is: of pictures, or of rows, which it takes for pictures one high."""
    sizes = _sizes(*args, **kwargs)
    if name == "mean":
        return x.dim() == 4 and sizes == [2, 3]
    return name in ("adaptive_avg_pool1d", "adaptive_avg_pool2d") and sizes in ([1], [1, 1])


def _sizes(*args: Any, **kwargs: Any) -> list[Any]:
    """The first argument behind the tensor, of which there may be one for all axes."""
    given = next(iter((*args, *kwargs.values())), None)
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _by_multiplier(func: Any, x: Quantized, *args: Any, **kwargs: Any) -> Tensor:
    axes = (2,) if func.__name__ == "adaptive_avg_pool1d" else (-2, -1)
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    keep = func.__name__ != "mean" or bool(kwargs.get("keepdim", args[1] if len(args) > 1 else False))
    scale = torch.as_tensor(x.scale, dtype=torch.float32)
    return _centered(x).sum(axes, keepdim=keep) * (scale / (scale * count))


def _centered(x: Quantized) -> Tensor:
    """The integers as floats, zero being zero."""
    return x.values.float() - x.zero_point


def _rounded(x: Quantized, numbers: Tensor, *, before_zero: bool) -> Quantized:
    """The inverse, of an average of such integers."""
    limits = torch.iinfo(x.values.dtype)
    values = torch.round(numbers) + x.zero_point if before_zero else torch.round(numbers + x.zero_point)
    return Quantized(values.clamp(limits.min, limits.max).to(x.values.dtype), x.scale, x.zero_point)
