"""aten::index_reduce, aten::scatter_reduce with "mean", aten::scatter that adds or multiplies, aten::segment_reduce

    index_reduce    scatter_reduce with one index for each slice instead of each number
    mean            the sum divided by how many were summed, for whole numbers rounded down
    scatter         scatter_reduce with "sum" or "prod"
    segment_reduce  scatter_reduce to the number of the segment that each slice is in

ONNX scatters sums, products, minima and maxima; torch translates "mean" into the last one written. Where the input is
not to take part it is first overwritten with what changes nothing, where anything is scattered to.

Source of truth: ATen's native/TensorAdvancedIndexing.cpp and native/SegmentReduce.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.registering import composes

aten: Any = torch.ops.aten


@composes("aten::scatter_reduce.two")
def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    if reduce != "mean":
        return NotImplemented
    return _mean(self, dim, index, src, include_self)


@composes("aten::scatter.reduce")
def scatter(self: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    """By "add" or "multiply"; `src` may be larger than `index`, as PyTorch allows."""
    for axis, (size, own) in enumerate(zip(index.shape, src.shape, strict=True)):
        if not (isinstance(size, int) and isinstance(own, int) and size == own):
            src = src.narrow(axis, 0, size)
    return aten.scatter_reduce.two(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@composes("aten::scatter.value_reduce")
def scatter_value(self: Any, dim: int, index: Any, value: float, *, reduce: str) -> Any:
    return scatter(self, dim, index, torch.full_like(index, value, dtype=self.dtype), reduce=reduce)


@composes("aten::index_reduce.default")
def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    if self.dim() == 0:
        result = index_reduce(self.reshape(1), 0, index, source.reshape(1), reduce, include_self=include_self)
        return result.reshape(())
    dim = dim % self.dim()
    shape = [-1 if axis == dim else 1 for axis in range(self.dim())]
    index = index.reshape(shape).expand(source.shape)
    if reduce == "mean":
        return _mean(self, dim, index, source, include_self)
    if not include_self:
        self = _where_scattered(self, dim, index, _neutral(reduce, self.dtype))
    return aten.scatter_reduce.two(self, dim, index, source, reduce, include_self=True)


@composes("aten::segment_reduce.default")
def segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """Segments are given by their lengths, or by where they begin and, last, where the last ends."""
    if indices is not None or (lengths is None and offsets is None):
        raise NotImplementedError("segment_reduce without lengths and without offsets")
    axis = axis % data.dim()
    ends = lengths.cumsum(-1) if lengths is not None else offsets[..., 1:]
    sizes = lengths if lengths is not None else offsets[..., 1:] - offsets[..., :-1]
    place = torch.arange(data.shape[axis], device=data.device)
    index = (ends.unsqueeze(-2) <= place.unsqueeze(-1)).long().sum(-1)
    shape = [data.shape[i] if i <= axis else 1 for i in range(data.dim())]
    index = index.reshape(shape).expand(data.shape)
    count = ends.shape[-1]
    start = _neutral("sum" if reduce == "mean" else _SCATTERED[reduce], data.dtype) if initial is None else initial
    spare = [*data.shape[:axis], count + 1, *data.shape[axis + 1 :]]  # what is after the last end comes to one more
    scattered = "sum" if reduce == "mean" else _SCATTERED[reduce]
    total = aten.scatter_reduce.two(data.new_full(spare, start), axis, index, data, scattered, include_self=True)
    total = total.narrow(axis, 0, count)
    if reduce != "mean":
        return total
    sizes = sizes.reshape(*sizes.shape, *([1] * (data.dim() - axis - 1))).to(data.dtype)
    return torch.where((sizes > 0) | (initial is None), total / sizes, total)


_SCATTERED = {"sum": "sum", "prod": "prod", "min": "amin", "max": "amax"}


def _mean(self: Any, dim: int, index: Any, src: Any, include_self: bool) -> Any:
    ones = torch.ones_like(self, dtype=torch.int64)
    begun = self if include_self else _where_scattered(self, dim, index, 0)
    counted = ones if include_self else _where_scattered(ones, dim, index, 0)
    total = aten.scatter_add.default(begun, dim, index, src)
    count = aten.scatter_add.default(counted, dim, index, torch.ones_like(index)).to(self.dtype)
    return total / count if self.is_floating_point() else torch.div(total, count, rounding_mode="floor")


def _where_scattered(x: Any, dim: int, index: Any, number: float) -> Any:
    return aten.scatter.value(x, dim, index, number)


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """What changes no result."""
    if reduce in ("sum", "prod"):
        return 0 if reduce == "sum" else 1
    if dtype.is_floating_point:
        return torch.inf if reduce == "amin" else -torch.inf
    return torch.iinfo(dtype).max if reduce == "amin" else torch.iinfo(dtype).min
