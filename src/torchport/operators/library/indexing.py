"""Selection by masks and indices, writing to slices, and scatters that reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.registration import composes, translates

# aten.masked_select
#
#     output = all input[i] with mask[i], in order, after both were broadcast
#
# ONNX's Compress takes them from a flat tensor; torch has no translation for it (2.13).

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::masked_select.default")
def masked_select(self: Any, mask: Any) -> Any:
    every = op.Constant(value_ints=[-1])
    full = op.Expand(mask, op.Shape(self))  # Expand broadcasts both ways
    values = op.Expand(self, op.Shape(full))
    return op.Compress(op.Reshape(values, every), op.Reshape(full, every))


# aten::nonzero, aten::nonzero_static
#
#     the places of all numbers that are not zero, one a row, in order; nonzero_static: so many rows, filled up
#
# A tensor without axes has places without numbers: [n, 0], not ONNX's [n, 1]. ONNX Runtime looks through few types; all
# are made truth values first. Of the static form no size is unknown, so each number is scattered to its row.
#
# Source of truth: ATen's native/TensorAdvancedIndexing.cpp.


@translates("aten::nonzero.default")
def nonzero(self: Any) -> Any:
    """Translate one call."""
    truth = op.Cast(self, to=ir.DataType.BOOL)
    if len(self.shape) > 0:
        return op.Transpose(op.NonZero(truth), perm=[1, 0])
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    return op.Slice(op.Transpose(op.NonZero(op.Unsqueeze(truth, zero)), perm=[1, 0]), zero, zero, one)


@composes("aten::nonzero_static.default")
def nonzero_static(self: Any, *, size: Any, fill_value: int = -1) -> Any:
    """The composition: what is too much goes to a row after the last."""
    if self.dim() == 0 or (isinstance(size, int) and size == 0):
        return torch.full((size, self.dim()), fill_value, dtype=torch.int64, device=self.device)
    mask = (self != 0).reshape(-1)
    row = torch.where(mask, mask.long().cumsum(0) - 1, size).clamp(max=size)
    places = torch.full((size + 1,), -1, dtype=torch.int64, device=self.device)
    rest = places.scatter(0, row, torch.arange(mask.shape[0], device=self.device))[:size]
    empty, columns = rest < 0, []
    for length in reversed(self.shape):
        whole = rest // length
        columns.append(torch.where(empty, fill_value, rest - whole * length))
        rest = whole
    return torch.stack(columns[::-1], 1)


# aten::take, aten::put
#
#     take   output[i] = flat input[index[i]]
#     put    flat output[index[i]] = source[i], or adds to it
#
# An index below zero counts from the end. Torch has no translation for put, and takes single numbers without a shape.
#
# Source of truth: ATen's native/TensorAdvancedIndexing.cpp.


@composes("aten::take.default")
def take(self: Any, index: Any) -> Any:
    flat = self.reshape(-1)
    return flat.index_select(0, _from_start(index, flat)).reshape(index.shape)


@composes("aten::put.default")
def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = self.reshape(-1)
    scatter = torch.scatter_add if accumulate else torch.scatter
    return scatter(flat, 0, _from_start(index, flat), source.reshape(-1)).reshape(self.shape)


def _from_start(index: Any, flat: Any) -> Any:
    index = index.reshape(-1)
    return torch.where(index < 0, index + flat.shape[0], index)


# aten::index_reduce, aten::scatter_reduce with "mean", aten::scatter that adds or multiplies, aten::segment_reduce
#
#     index_reduce    scatter_reduce with one index for each slice instead of each number
#     mean            the sum divided by how many were summed, for whole numbers rounded down
#     scatter         scatter_reduce with "sum" or "prod"
#     segment_reduce  scatter_reduce to the number of the segment that each slice is in
#
# ONNX scatters sums, products, minima and maxima; torch translates "mean" into the last one written. Where the input is
# not to take part it is first overwritten with what changes nothing, where anything is scattered to.
#
# Source of truth: ATen's native/TensorAdvancedIndexing.cpp and native/SegmentReduce.cpp.

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


# aten::slice_scatter
#
#     output = input with src written to input[start : end : step] along an axis
#
# Where the axis varies, the capture takes it that a slice such as x[:3] has the rows it has in the example, three, and
# what is written to it may be a constant of as many. At smaller sizes there are fewer places. PyTorch writes to these;
# it takes a src of the slice's size alone, so that one with more rows was broadcast: the first ones will do. A slice of
# a slice, x[:3, :2], may be smaller than it seems along each axis.


@translates("aten::slice_scatter.default")
def slice_scatter(self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    axis, first = op.Constant(value_ints=[dim % len(self.shape)]), op.Constant(value_ints=[0])
    size = op.Gather(op.Shape(self), axis, axis=0)
    ends = op.Constant(value_ints=[torch.iinfo(torch.int64).max]) if end is None else _row(end)
    every = op.Range(op.Squeeze(first), op.Squeeze(size), op.Constant(value_int=1))
    places = op.Slice(every, first if start is None else _row(start), ends, first, _row(step))
    src = _cut(src, self, dim % len(self.shape), places)
    perm = list(range(len(self.shape)))
    perm[0], perm[dim] = perm[dim], perm[0]
    written = op.ScatterND(_moved(self, perm), op.Unsqueeze(places, op.Constant(value_ints=[-1])), _moved(src, perm))
    return _moved(written, perm)


def _cut(src: Any, self: Any, dim: int, places: Any) -> Any:
    """What is written, without the rows for which the running model has no place."""
    axes = [axis for axis, size in enumerate(src.shape) if isinstance(size, int) and _varies(self, axis)]
    if not axes:
        return src
    sizes = [op.Shape(places) if axis == dim else _true_size(self, axis) for axis in axes]
    return op.Slice(src, op.Constant(value_ints=[0] * len(axes)), op.Concat(*sizes, axis=0), _row(axes))


def _places(size: Any, starts: Any, ends: Any, steps: Any) -> Any:
    """The numbers of the rows that a slice takes."""
    first = op.Constant(value_ints=[0])
    every = op.Range(op.Squeeze(first), op.Squeeze(size), op.Constant(value_int=1))
    return op.Slice(every, starts, ends, first, steps)


def _sliced(x: Any) -> Any | None:
    """The node that sliced a tensor; None if it is no slice."""
    node = x.producer()
    return node if node is not None and node.op_type == "Slice" else None


def _varies(x: Any, axis: int) -> bool:
    """Check that an axis varies, in a slice too: there the capture says that it does not."""
    node = _sliced(x)
    return not isinstance(x.shape[axis], int) or (node is not None and _varies(node.inputs[0], axis))


def _true_size(x: Any, axis: int) -> Any:
    """The size of an axis in the running model, of a slice too. Shape would be folded to what the capture says."""
    node = _sliced(x)
    if node is None or not isinstance(x.shape[axis], int) or not _varies(x, axis):
        return op.Shape(x, start=axis, end=axis + 1)
    whole, starts, ends, _, steps = node.inputs
    size = _true_size(whole, axis)
    return size if whole.shape[axis] == x.shape[axis] else op.Shape(_places(size, starts, ends, steps))


def _row(number: Any) -> Any:
    """Numbers of the capture, or one of the graph, as a row."""
    if isinstance(number, (int, list)):
        return op.Constant(value_ints=number if isinstance(number, list) else [number])
    return op.Reshape(number, op.Constant(value_ints=[-1]))


def _moved(x: Any, perm: list[int]) -> Any:
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


# aten::diagonal_scatter, aten::as_strided_scatter
#
#     output = input with src at the places that diagonal, or as_strided, would read
#
# The places are counted in the flat input. as_strided counts them in memory: an input that does not lie there without
# gaps is refused, and so are strides that come to one place twice, where the last one written is not defined.
#
# Source of truth: PyTorch's answers.


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
