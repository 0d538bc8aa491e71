"""aten::searchsorted, aten::bucketize, aten::isin

    searchsorted: how many numbers of a sorted sequence are less than a value (`right`: or equal)
    isin:         whether any number of another tensor is equal

The search halves the range that is left, as PyTorch's does, with one gather a step for all values: PyTorch does not
look whether the sequence is sorted, and so the answers are the same if it is not, or if there is NaN in it. A sequence
of unknown length gets the steps of the longest.

Source of truth: ATen's native/Bucketization.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from torchport.operators.registering import composes

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
