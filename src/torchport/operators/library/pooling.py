"""Adaptive pooling, and average pooling with a divisor of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops import nn

from torchport.operators.registration import composes, translates

# aten::adaptive_max_pool1d, 2d and 3d, aten::adaptive_avg_pool3d
#
#     window o of n numbers, m windows: from floor(o · n / m) to ceil((o + 1) · n / m), the end not in it
#
# All windows are gathered at once, the shorter ones with their last number again: that is no new maximum, and of equal
# numbers PyTorch names the first. For averages it is left out, and one axis is taken after the other. Windows that do
# not overlap are those of an ordinary pooling, which is quicker. Sizes may vary; the number of windows may not.
#
# Source of truth: ATen's native/AdaptivePooling.h and native/cpu/AdaptiveMaxPoolKernel.cpp.


def adaptive_max_pool(axes: int) -> Callable[[Any, Sequence[int]], Any]:
    """The composition for so many axes: the maxima, and where they are in the flat input."""

    def pool(self: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
        sizes, counts = list(self.shape[-axes:]), _counts(output_size, axes)
        if axes > 1 and _is_even(sizes, counts):
            ordinary = getattr(torch.ops.aten, f"max_pool{axes}d_with_indices")
            windows = [size // count for size, count in zip(sizes, counts, strict=True)]
            maxima, where = ordinary(self, windows, windows)
            return maxima, where
        x, place = self, torch.zeros(1, dtype=torch.int64, device=self.device)
        for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            places, _ = _windows(size, count, self.device)
            x = x.index_select(axis - axes, places.reshape(-1))
            place = place.unsqueeze(-1) * size + places.reshape(-1)
        length = [_longest(size, count) for size, count in zip(sizes, counts, strict=True)]
        x = _together(x, counts, length)
        place = _together(place.reshape([c * n for c, n in zip(counts, length, strict=True)]), counts, length)
        best = x.argmax(-1, keepdim=True)
        where = place.expand(x.shape).gather(-1, best)
        return x.gather(-1, best).squeeze(-1), where.squeeze(-1)

    return pool


@composes("aten::adaptive_avg_pool3d.default", "aten::_adaptive_avg_pool3d.default")
def adaptive_avg_pool3d(self: Any, output_size: Sequence[int]) -> Any:
    sizes, counts = list(self.shape[-3:]), _counts(output_size, 3)
    if _is_even(sizes, counts):
        windows = [size // count for size, count in zip(sizes, counts, strict=True)]
        return torch.ops.aten.avg_pool3d.default(self, windows, windows)
    if any(isinstance(size, int) and size == 0 for size in self.shape):
        return self.new_zeros((*self.shape[:-3], *counts))
    x = self
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        places, inside = _windows(size, count, self.device)
        x = x.movedim(axis - 3, -1)
        taken = x.index_select(-1, places.reshape(-1)).reshape(*x.shape[:-1], count, _longest(size, count))
        total = torch.where(inside, taken, 0).sum(-1)
        x = (total / inside.sum(-1).to(x.dtype)).movedim(-1, axis - 3)
    return x


def _counts(output_size: Sequence[int], axes: int) -> list[int]:
    return list(output_size) * (axes // len(output_size))


def _is_even(sizes: Sequence[Any], counts: Sequence[int]) -> bool:
    return all(isinstance(n, int) and n > 0 and m > 0 and n % m == 0 for n, m in zip(sizes, counts, strict=True))


def _longest(size: Any, count: int) -> Any:
    """No window is longer, at any size."""
    return (size + count - 1) // count + 1


def _windows(size: Any, count: int, device: torch.device) -> tuple[Any, Any]:
    """The places of each window, one window a row, and which of them are in it."""
    window = torch.arange(count, device=device).unsqueeze(-1)
    start, end = (window * size) // count, ((window + 1) * size + count - 1) // count
    places = start + torch.arange(_longest(size, count), device=device)
    return torch.minimum(places, end - 1), places < end


def _together(x: Any, counts: Sequence[int], length: Sequence[Any]) -> Any:
    """From axes of windows one after the other to: the windows of all axes, then the numbers of one in one axis."""
    axes = len(counts)
    front = x.shape[: x.dim() - axes]
    apart = [size for pair in zip(counts, length, strict=True) for size in pair]
    x = x.reshape(*front, *apart)
    windows = range(len(front), len(front) + 2 * axes, 2)
    order = [*range(len(front)), *windows, *(axis + 1 for axis in windows)]
    return x.permute(order).reshape(*front, *counts, math.prod(length))


composes("aten::adaptive_max_pool1d.default")(adaptive_max_pool(1))
composes("aten::adaptive_max_pool2d.default")(adaptive_max_pool(2))
composes("aten::adaptive_max_pool3d.default")(adaptive_max_pool(3))


# aten::avg_pool2d, aten::avg_pool3d with divisor_override
#
#     output = Σ window / divisor_override
#
# Torch's translation does not look at the divisor. The zeros around the input are put there first, as many as the last
# window reaches, so that ONNX's average divides by the whole window everywhere; a factor makes it the other divisor.
#
# Source of truth: ATen's native/Pool.h and native/cpu/AvgPoolKernel.cpp.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def avg_pool(axes: int) -> Callable[..., Any]:
    """The translation for so many axes."""
    of_torch: Any = getattr(nn, f"aten_avg_pool{axes}d")

    def translate(
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        window, pads = _each(kernel_size, axes), _each(padding, axes)
        steps = _each(stride, axes) if stride else window
        if divisor_override is None:
            return of_torch(self, window, steps, pads, ceil_mode, count_include_pad)
        sizes = self.shape[-axes:]
        more = [_reach(n, k, s, p) if ceil_mode else 0 for n, k, s, p in zip(sizes, window, steps, pads, strict=True)]
        others = [0] * (len(self.shape) - axes)
        ends = [p + extra for p, extra in zip(pads, more, strict=True)]
        padded = op.Pad(self, op.Constant(value_ints=[*others, *pads, *others, *ends]))
        factor = ir.tensor(math.prod(window) / divisor_override, dtype=self.dtype)
        if len(others) > 1:
            return op.Mul(op.AveragePool(padded, kernel_shape=window, strides=steps), op.Constant(value=factor))
        first = op.Constant(value_ints=[0])
        pooled = op.Squeeze(op.AveragePool(op.Unsqueeze(padded, first), kernel_shape=window, strides=steps), first)
        return op.Mul(pooled, op.Constant(value=factor))

    return translate


def _each(given: Sequence[int], axes: int) -> list[int]:
    return list(given) * (axes // len(given))


def _reach(size: Any, window: int, step: int, pad: int) -> int:
    """By how much the last window, which must begin inside or before the input, is longer than what is there."""
    if not isinstance(size, int):
        raise NotImplementedError("avg_pool with ceil_mode and divisor_override, of a size that varies")
    last = -(-(size + 2 * pad - window) // step) * step
    last -= step if last >= size + pad else 0
    return max(last + window - size - 2 * pad, 0)


translates("aten::avg_pool2d.default")(avg_pool(2))
translates("aten::avg_pool3d.default")(avg_pool(3))
