"""aten::_upsample_bilinear2d_aa, aten::_upsample_bicubic2d_aa

    output = rows · input · columnsᵀ,  a weight for each place before and after, along each of the two axes

    weight of k for i = f((k + 1/2 - center) / s),  center = scale · (i + 1/2),  s = max(scale, 1),  rows sum to 1
    f: the triangle 1 - |t| up to 1; or Keys' cubic with a = -1/2 up to 2

For a scale that is given, which PyTorch uses as it is: ONNX's Resize takes that of the sizes, 17 / 8 for a half of 17.

Source of truth: ATen's native/cpu/UpSampleKernel.cpp. Where the output is one column wide, PyTorch 2.13 gives its first
row for every row, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport.operators.composing import only_where
from torchport.operators.registering import composes

Filter = Callable[[torch.Tensor], torch.Tensor]


def _applies(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> bool:
    fixed = output_size is not None and all(isinstance(n, int) for n in output_size)
    return self.is_floating_point() and not align_corners and not (fixed and scale_factors is None)


@composes("aten::_upsample_bilinear2d_aa.vec")
@only_where(_applies)
def bilinear(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    return _resized(self, output_size, scale_factors, _triangle, 1.0)


@composes("aten::_upsample_bicubic2d_aa.vec")
@only_where(_applies)
def bicubic(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    return _resized(self, output_size, scale_factors, _cubic, 2.0)


def _resized(x: Any, size: Sequence[Any] | None, factors: Sequence[float] | None, shape: Filter, reach: float) -> Any:
    wide = x if x.dtype is torch.float64 else x.float()
    scales: Sequence[float | None] = factors or (None, None)
    if size is None:
        assert factors is not None
        size = [torch.sym_int(n * factor) for n, factor in zip(x.shape[-2:], factors, strict=True)]
    rows, columns = (
        _weights(before, after, scale, shape, reach, wide)
        for before, after, scale in zip(x.shape[-2:], size, scales, strict=True)
    )
    wider = torch.full((), size[1], device=x.device) > 1
    rows = rows.index_select(0, torch.arange(size[0], device=x.device) * wider)
    return (rows @ (wide @ columns.T)).to(x.dtype)


def _weights(before: Any, after: Any, given: Any, shape: Filter, reach: float, like: Any) -> torch.Tensor:
    """Of each place before for each place after; what is out of reach has none."""
    places = torch.arange(before, dtype=like.dtype, device=like.device)
    scale = torch.full((), before, dtype=like.dtype, device=like.device) / after if given is None else 1.0 / given
    stretch = torch.clamp(scale, min=1.0) if given is None else max(scale, 1.0)
    center = scale * (torch.arange(after, dtype=like.dtype, device=like.device) + 0.5)[:, None]
    first, last = (torch.clamp(torch.floor(center + side * stretch * reach + 0.5), min=0.0) for side in (-1, 1))
    near = (places >= first) & (places < last)
    weights = torch.where(near, shape((places + 0.5 - center) / stretch), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _triangle(t: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1 - t.abs(), min=0.0)


def _cubic(t: torch.Tensor) -> torch.Tensor:
    t = t.abs()
    inner = (1.5 * t - 2.5) * t * t + 1
    outer = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, inner, torch.where(t < 2, outer, 0.0))
