"""Covariance, combinations, bincount and histograms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.library.sorting import search
from torchport.operators.registration import composes, replaces, translates

# torch.cov, torch.corrcoef
#
#     cov      = (x - mean) · diag(w) · (x - mean)ᵀ / (sum(w) - correction), observations weighted by w = f · a
#     corrcoef = cov[i, j] / √(cov[i, i] · cov[j, j])
#
# With weights a that are not counts, the correction is multiplied by sum(w · a) / sum(w). PyTorch's own look at the
# values of the weights before they compute, which nothing that is captured can do; these take the weights as they are.
#
# Source of truth: ATen's native/Correlation.cpp.


@replaces("torch.cov", "torch.Tensor.cov")
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


@replaces("torch.corrcoef", "torch.Tensor.corrcoef")
def corrcoef(input: Any) -> Any:
    c = cov(input)
    if c.dim() == 0:
        return c / c
    deviation = c.diagonal().sqrt()
    return (c / deviation.unsqueeze(1) / deviation).clamp(-1, 1)


# torch.combinations
#
#     every choice of r numbers of a vector, in the order of itertools
#
# PyTorch's own chooses by a mask, whose number of places nothing that is captured knows.
#
# Source of truth: ATen's native/Itertools.cpp.


@replaces("torch.combinations")
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    if not isinstance(input.shape[0], int):
        raise NotImplementedError("torch.combinations of a size that varies; index with a mask of your own")
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(chosen(range(input.shape[0]), r))
    index = torch.tensor(places, dtype=torch.int64, device=input.device).reshape(len(places), r)
    return input[index] if r else input.new_empty(0)


# aten::bincount
#
#     output[k] = how many numbers are k, or the sum of their weights; for k up to the largest, and up to minlength
#
# Source of truth: ATen's native/SummaryOps.cpp. Weights of 32 bits give sums of 32 bits, all others of 64.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::bincount.default")
def bincount(self: Any, weights: Any = None, minlength: Any = 0) -> Any:
    """Translate one call: each amount is added to its place among zeros."""
    places = op.Cast(self, to=ir.DataType.INT64)
    one = op.Constant(value_ints=[1])
    least = op.Constant(value_ints=[minlength]) if isinstance(minlength, int) else op.Reshape(minlength, one)
    size = op.ReduceMax(op.Concat(op.Add(places, one), least, axis=0), keepdims=1)  # of no numbers, too
    if weights is None:
        amounts = op.Expand(one, op.Shape(places))
        dtype = ir.DataType.INT64
    else:
        dtype = ir.DataType.FLOAT if weights.dtype == ir.DataType.FLOAT else ir.DataType.DOUBLE
        amounts = op.Cast(weights, to=dtype)
    zeros = op.Expand(op.Constant(value=ir.tensor([0], dtype=dtype)), size)
    return op.ScatterElements(zeros, places, amounts, axis=0, reduction="add")


# aten::histogram
#
#   hist[b] = how many numbers, or the sum of their weights, are in edges[b] <= x < edges[b + 1]; the last with its end
#
# Without edges they are even, over the range given or that of the numbers; half a step around a range without length.
# A density is divided by the sum and by the widths.
#
# Source of truth: ATen's native/Histogram.cpp and native/cpu/HistogramKernel.cpp.


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


# aten::histogramdd
#
#     hist[b, c, ...] = how many rows, or the sum of their weights, are in bin b of the first axis, c of the second, ...
#
# Edges and bins of one axis are those of aten::histogram; a row counts if each of its numbers is in a bin. A density is
# divided by the sum and by the widths along every axis.
#
# Source of truth: ATen's native/Histogram.cpp and native/cpu/HistogramKernel.cpp.


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
