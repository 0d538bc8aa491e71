"""aten::kthvalue, aten::median, aten::nanmedian, aten::mode

    kthvalue   the number at place k - 1 of the sorted axis; NaN comes last
    median     at place (n - 1) // 2, the lower one of two; NaN if there is one
    nanmedian  the same of the numbers that are not NaN
    mode       the number that is there most often, and of several the least

The axis is sorted once. A number that is there more than once has the place that a stable sort gives it, as PyTorch's
medians; mode's is the last, as PyTorch's of up to 16 numbers. PyTorch's kthvalue, and mode of more, name whichever
place their swaps have left there, which nothing but the same swaps would give.

Source of truth: ATen's native/Sorting.cpp and native/cpu/SortingKernel.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.library.searchsorted import search
from torchport.operators.registering import composes


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
