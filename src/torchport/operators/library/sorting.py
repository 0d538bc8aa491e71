"""Order statistics, searchsorted, stable sort, unique_consecutive."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.composition import only_where
from torchport.operators.registration import composes, translates

# aten::kthvalue, aten::median, aten::nanmedian, aten::mode
#
#     kthvalue   the number at place k - 1 of the sorted axis; NaN comes last
#     median     at place (n - 1) // 2, the lower one of two; NaN if there is one
#     nanmedian  the same of the numbers that are not NaN
#     mode       the number that is there most often, and of several the least
#
# The axis is sorted once. A number that is there more than once has the place that a stable sort gives it, as PyTorch's
# medians; mode's is the last, as PyTorch's of up to 16 numbers. PyTorch's kthvalue, and mode of more, name whichever
# place their swaps have left there, which nothing but the same swaps would give.
#
# Source of truth: ATen's native/Sorting.cpp and native/cpu/SortingKernel.cpp.


@composes("aten::kthvalue.default")
def kthvalue(self: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if self.dim() == 0:
        return self.clone(), _scalar_place(self)
    x, ordered, known = _sorted(self, dim)
    place = torch.full_like(known, 0) + (k - 1)
    value = _at(ordered, place, known)
    return _given(self, value, _place(x, value, place - (ordered < value).long().sum(-1, keepdim=True)), dim, keepdim)


@composes("aten::median.dim")
def median(self: Any, dim: int, keepdim: bool = False) -> Any:
    if self.dim() == 0:
        return self.clone(), _scalar_place(self)
    x, ordered, known = _sorted(self, dim)
    count = x.shape[-1]
    place = torch.where(known < count, count - 1, torch.full_like(known, 0) + (count - 1) // 2)
    value = _at(ordered, place, known)
    return _given(self, value, _place(x, value, place - (ordered < value).long().sum(-1, keepdim=True)), dim, keepdim)


@composes("aten::nanmedian.dim")
def nanmedian(self: Any, dim: int, keepdim: bool = False) -> Any:
    if self.dim() == 0:
        return self.clone(), _scalar_place(self)
    x, ordered, known = _sorted(self, dim)
    place = ((known - 1) // 2).clamp(min=0)
    value = _at(ordered, place, known)
    return _given(self, value, _place(x, value, place - (ordered < value).long().sum(-1, keepdim=True)), dim, keepdim)


@composes("aten::median.default")
def median_of_all(self: Any) -> Any:
    return median(self.reshape(-1), 0)[0]


@composes("aten::nanmedian.default")
def nanmedian_of_all(self: Any) -> Any:
    return nanmedian(self.reshape(-1), 0)[0]


@composes("aten::mode.default")
def mode(self: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if self.dim() == 0:
        return self.clone(), _scalar_place(self)
    x, ordered, known = _sorted(self, dim)
    often = search(ordered, ordered, right=True) - search(ordered, ordered, right=False)
    if x.is_floating_point():  # NaN was put in as infinity, and equals nothing
        unknown = x.shape[-1] - known
        often = torch.where(torch.isinf(ordered) & (ordered > 0), often - unknown, often)
        often = torch.where(torch.arange(x.shape[-1], device=x.device) >= known, 1, often)
    value = _at(ordered, often.argmax(-1, keepdim=True), known)
    return _given(self, value, _place(x, value, _equal(x, value).sum(-1, keepdim=True) - 1), dim, keepdim)


def _sorted(x: Any, dim: int) -> tuple[Any, Any, Any]:
    """With the axis last: the numbers as ONNX Runtime sorts them, those in order, and how many are not NaN."""
    x = x.movedim(dim, -1)
    if not x.is_floating_point():
        x = x if x.dtype is torch.int64 else x.to(torch.int32)
        known = torch.zeros_like(x[..., :1], dtype=torch.int64) + x.shape[-1]
        return x, x.sort(-1).values, known
    x = x if x.dtype is torch.float64 else x.float()
    known = (~torch.isnan(x)).long().sum(-1, keepdim=True)
    return x, torch.where(torch.isnan(x), torch.inf, x).sort(-1).values, known


def _at(ordered: Any, place: Any, known: Any) -> Any:
    value = ordered.gather(-1, place)
    return torch.where(place < known, value, torch.nan) if ordered.is_floating_point() else value


def _place(x: Any, value: Any, skipped: Any) -> Any:
    """Where the value is, after so many that equal it. What is asked of NaN is the first."""
    equal = _equal(x, value)
    if x.is_floating_point():
        skipped = torch.where(torch.isnan(value), 0, skipped)
    return (equal * (equal.cumsum(-1) == skipped + 1).long()).argmax(-1, keepdim=True)


def _equal(x: Any, value: Any) -> Any:
    same = x == value
    return (same | (torch.isnan(x) & torch.isnan(value)) if x.is_floating_point() else same).long()


def _given(self: Any, value: Any, place: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    value, place = value.to(self.dtype).movedim(-1, dim), place.movedim(-1, dim)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _scalar_place(x: Any) -> Any:
    return torch.zeros_like(x, dtype=torch.int64)


# aten::searchsorted, aten::bucketize, aten::isin
#
#     searchsorted: how many numbers of a sorted sequence are less than a value (`right`: or equal)
#     isin:         whether any number of another tensor is equal
#
# The search halves the range that is left, as PyTorch's does, with one gather a step for all values: PyTorch does not
# look whether the sequence is sorted, and so the answers are the same if it is not, or if there is NaN in it. A
# sequence of unknown length gets the steps of the longest.
#
# Source of truth: ATen's native/Bucketization.cpp.

_LONGEST = 2**31


@composes("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Any,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    sequence = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    values = self if isinstance(self, torch.Tensor) else torch.scalar_tensor(self, dtype=_kind(self))
    dtype = torch.result_type(sequence, values)
    found = search(sequence.to(dtype), values.to(dtype), right=right or side == "right")
    return found.to(torch.int32) if out_int32 else found


@composes("aten::bucketize.Tensor", "aten::bucketize.Scalar")
def bucketize(self: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def search(sequence: Any, values: Any, *, right: bool) -> Any:
    """Where the values belong; in one sequence for all, or each in that of its row."""
    size = sequence.shape[-1]
    start = torch.zeros_like(values, dtype=torch.int64)
    if isinstance(size, int) and size == 0:
        return start
    end = torch.full_like(start, 0) + size
    for _ in range((size if isinstance(size, int) else _LONGEST).bit_length()):
        middle = (start + end) // 2
        number = _numbers(sequence, middle.clamp(max=size - 1))
        before = ~(number > values) if right else ~(number >= values)
        begun = start < end
        start, end = torch.where(begun & before, middle + 1, start), torch.where(begun & ~before, middle, end)
    return start


def _numbers(sequence: Any, places: Any) -> Any:
    if sequence.dim() == 1:
        return sequence.index_select(0, places.reshape(-1)).reshape(places.shape)
    return sequence.gather(-1, places)


def _kind(number: bool | float) -> torch.dtype:
    return torch.get_default_dtype() if isinstance(number, float) else torch.int64


@composes("aten::isin.Tensor_Tensor")
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    equal = elements.unsqueeze(-1) == test_elements.reshape(-1)
    found = torch.nn.functional.pad(equal.to(torch.int32), (0, 1)).sum(-1) > 0  # there may be nothing to look in
    return ~found if invert else found


# aten::sort.stable
#
# ONNX has no sort, but the k largest with k the size of the axis. Of equal numbers TopK puts the one with the lower
# index first, in both directions, which is what stable means.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::sort.stable")
def sort_stable(self: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Translate one call: the sorted values and where they were."""
    if len(self.shape) == 0:
        return op.Identity(self), op.Constant(value_int=0)
    axis = dim % len(self.shape)
    size = op.Shape(self, start=axis, end=axis + 1)
    if self.dtype != ir.DataType.BOOL:
        return op.TopK(self, size, axis=axis, largest=int(descending), sorted=1)
    values, places = op.TopK(op.Cast(self, to=ir.DataType.INT32), size, axis=axis, largest=int(descending), sorted=1)
    return op.Cast(values, to=ir.DataType.BOOL), places


@composes("aten::sort.default")
@only_where(lambda self, *_, **__: self.dtype is torch.bool)
def sort_truths(self: Any, dim: int = -1, descending: bool = False) -> Any:
    """Torch's translation of the unstable sort hands truths to TopK, which takes numbers only."""
    return torch.sort(self, stable=True, dim=dim, descending=descending)


# aten::unique_consecutive
#
#     values = those that differ from the one before; inverse = each one's run; counts = how long the runs are
#
# Torch translates it for whole numbers and without an axis only. Along an axis, slices are compared.
#
# Source of truth: ATen's native/Unique.cpp.


@translates("aten::unique_consecutive.default")
def unique_consecutive(
    self: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Translate one call; what was not asked for is empty, as in PyTorch."""
    rank = len(self.shape)
    flat = dim is None or rank == 0
    axis = 0 if flat or dim is None else dim % rank
    x = op.Reshape(self, op.Constant(value_ints=[-1])) if flat else self
    size = op.Shape(x, start=axis, end=axis + 1)
    one, zero = op.Constant(value_int=1), op.Constant(value_int=0)
    place = op.Range(zero, op.Squeeze(size), one)
    before = op.Gather(x, op.Max(op.Sub(place, one), zero), axis=axis)
    differ = op.Not(op.Equal(x, before))
    if not flat and rank > 1:
        others = op.Constant(value_ints=[i for i in range(rank) if i != axis])
        differ = op.Cast(op.ReduceMax(op.Cast(differ, to=ir.DataType.INT32), others, keepdims=0), to=ir.DataType.BOOL)
    begins = op.Or(op.Equal(place, zero), differ)
    values = op.Compress(x, begins, axis=axis)
    inverse = counts = op.Constant(value=ir.tensor([], dtype=ir.DataType.INT64))
    if return_inverse:
        run = op.Sub(op.CumSum(op.Cast(begins, to=ir.DataType.INT64), zero), one)
        inverse = op.Reshape(run, op.Shape(self)) if flat else run
    if return_counts:
        starts = op.Compress(place, begins)
        last = op.Constant(value_ints=[2**62])
        following = op.Slice(op.Concat(starts, size, axis=0), op.Constant(value_ints=[1]), last)
        counts = op.Sub(following, starts)
    return values, inverse, counts
