"""aten::diagonal_scatter, aten::as_strided_scatter

    output = input with src at the places that diagonal, or as_strided, would read

The places are counted in the flat input. as_strided counts them in memory: an input that does not lie there without
gaps is refused, and so are strides that come to one place twice, where the last one written is not defined.

Source of truth: PyTorch's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.operators.registering import composes


@composes("aten::diagonal_scatter.default")
def diagonal_scatter(self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rows, columns = dim1 % self.dim(), dim2 % self.dim()
    x = self.movedim((rows, columns), (-2, -1))
    along = torch.arange(src.shape[-1], device=self.device)
    places = (along + max(-offset, 0)) * x.shape[-1] + along + max(offset, 0)
    flat = x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
    written = flat.scatter(-1, places.expand(src.shape), src)
    return written.reshape(x.shape).movedim((-2, -1), (rows, columns))


@composes("aten::as_strided_scatter.default")
def as_strided_scatter(
    self: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    if not self.is_contiguous():
        raise NotImplementedError("as_strided_scatter of a tensor that has gaps in memory")
    first = self.storage_offset() if storage_offset is None else storage_offset
    places = torch.full((), first, dtype=torch.int64, device=self.device)
    reach = 0  # how far the axes with smaller strides go
    for step, count in sorted((step, n) for step, n in zip(stride, size, strict=True) if n != 1):
        if step <= reach:
            raise NotImplementedError("as_strided_scatter that writes a place twice")
        reach += step * (count - 1)
    for step, count in zip(stride, size, strict=True):
        places = places.unsqueeze(-1) + torch.arange(count, device=self.device) * step
    return self.reshape(-1).scatter(0, places.reshape(-1), src.reshape(-1)).reshape(self.shape)
