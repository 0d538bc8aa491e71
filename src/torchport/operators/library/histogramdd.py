"""aten::histogramdd

    hist[b, c, ...] = how many rows, or the sum of their weights, are in bin b of the first axis, c of the second, ...

Edges and bins of one axis are those of aten::histogram; a row counts if each of its numbers is in a bin. A density is
divided by the sum and by the widths along every axis.

Source of truth: ATen's native/Histogram.cpp and native/cpu/HistogramKernel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchport.operators.library.histogram import even_edges, places_in
from torchport.operators.registering import composes


@composes("aten::histogramdd.TensorList_bins")
def of_edges(self: Any, bins: Sequence[Any], range: Any = None, weight: Any = None, density: bool = False) -> Any:
    rows = self.reshape(-1, self.shape[-1])
    counts = [edges.shape[0] - 1 for edges in bins]
    found = [places_in(edges, x) for edges, x in zip(bins, rows.unbind(-1), strict=True)]
    place, inside = found[0]
    for count, (other, also) in zip(counts[1:], found[1:], strict=True):
        place, inside = place * count + other, inside & also
    amount = torch.ones_like(rows[:, 0]) if weight is None else weight.reshape(-1)
    start = rows.new_zeros(math.prod(counts))
    hist = start.scatter_add(0, torch.where(inside, place, 0), torch.where(inside, amount, 0)).reshape(counts)
    if density:
        hist = hist / hist.sum()
        for axis, edges in enumerate(bins):
            hist = hist / (edges[1:] - edges[:-1]).reshape([-1 if n == axis else 1 for n, _ in enumerate(bins)])
    return hist, [edges.clone() for edges in bins]


@composes("aten::histogramdd.default")
def of_counts(self: Any, bins: Sequence[int], range: Any = None, weight: Any = None, density: bool = False) -> Any:
    columns = self.reshape(-1, self.shape[-1]).unbind(-1)
    ranges = [None] * len(bins) if range is None else list(zip(range[::2], range[1::2], strict=True))
    edges = [even_edges(x, count, ends) for x, count, ends in zip(columns, bins, ranges, strict=True)]
    return of_edges(self, edges, None, weight, density)


@composes("aten::histogramdd.int_bins")
def of_count(self: Any, bins: int, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    return of_counts(self, [bins] * self.shape[-1], range, weight, density)
