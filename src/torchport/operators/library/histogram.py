"""aten::histogram

    hist[b] = how many numbers, or the sum of their weights, are in edges[b] <= x < edges[b + 1]; the last with its end

Without edges they are even, over the range given or that of the numbers; half a step around a range without length.
A density is divided by the sum and by the widths.

Source of truth: ATen's native/Histogram.cpp and native/cpu/HistogramKernel.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchport.operators.library.searchsorted import search
from torchport.operators.registering import composes


@composes("aten::histogram.bins_tensor")
def histogram_of_edges(self: Any, bins: Any, *, weight: Any = None, density: bool = False) -> tuple[Any, Any]:
    x = self.reshape(-1)
    place, inside = places_in(bins, x)
    amount = torch.ones_like(x) if weight is None else weight.reshape(-1)
    start = torch.zeros_like(bins[:-1])
    hist = start.scatter_add(0, torch.where(inside, place, 0), torch.where(inside, amount, 0))
    if density:
        hist = hist / hist.sum() / (bins[1:] - bins[:-1])
    return hist, bins.clone()


@composes("aten::histogram.bin_ct")
def histogram_of_count(
    self: Any, bins: int = 100, *, range: Sequence[float] | None = None, weight: Any = None, density: bool = False
) -> tuple[Any, Any]:
    return histogram_of_edges(self, even_edges(self, bins, range), weight=weight, density=density)


def places_in(edges: Any, x: Any) -> tuple[Any, Any]:
    """The bin of each number, and whether it is in one at all."""
    place = search(edges, x, right=True) - 1
    place = torch.where(x == edges[-1], edges.shape[0] - 2, place)
    return place, (x >= edges[0]) & (x <= edges[-1])


def even_edges(x: Any, count: int, range: Sequence[float] | None) -> Any:
    if range is not None:
        low, high = (torch.full((1,), end, dtype=x.dtype, device=x.device) for end in range)
    elif any(isinstance(size, int) and size == 0 for size in x.shape):
        low, high = torch.zeros(1, dtype=x.dtype), torch.ones(1, dtype=x.dtype)
    else:
        flat = x.reshape(-1)
        low, high = flat.amin(0, keepdim=True), flat.amax(0, keepdim=True)
    single = low == high
    low, high = torch.where(single, low - 0.5, low), torch.where(single, high + 0.5, high)
    return _even(low, high, count)


def _even(low: Any, high: Any, count: int) -> Any:
    """As PyTorch's linspace: from the nearer end, the product not rounded before it is added."""
    step = ((high - low) / count).double()
    place = torch.arange(count + 1, device=low.device)
    forth, back = low.double() + step * place, high.double() - step * (count - place)
    return torch.where(place < (count + 1) // 2, forth, back).to(low.dtype)
