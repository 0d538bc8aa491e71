"""Adaptive and fractional pooling, windows of a size that varies, average pooling with a divisor of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops import nn

from torchport.operators.composition import only_where
from torchport.operators.registration import composes, replaces, translates
from torchport.torch_compat.shape_env import surely

# aten::adaptive_max_pool1d, 2d and 3d, aten::adaptive_avg_pool1d, 2d and 3d, interpolate with mode="area"
#
#     window o of n numbers, m windows: from floor(o · n / m) to ceil((o + 1) · n / m), the end not in it
#
# All windows are gathered at once, the shorter ones with their last number again: that is no new maximum, and of equal
# numbers PyTorch names the first. For averages it is left out, and one axis is taken after the other. Windows that do
# not overlap are those of an ordinary pooling, which is quicker. Sizes may vary, and the number of windows too; torch
# takes the latter for a number, so that the functions themselves are replaced where it varies.
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
        places = [_windows(size, count, self.device)[0] for size, count in zip(sizes, counts, strict=True)]
        return _maxima(self, places)

    return pool


def _maxima(x: Any, places: Sequence[Any]) -> tuple[Any, Any]:
    """The largest number of each window and its place in the flat picture; `places` has one window a row, by axis."""
    axes, place = len(places), torch.zeros(1, dtype=torch.int64, device=x.device)
    sizes = x.shape[-axes:]
    for axis, (size, own) in enumerate(zip(sizes, places, strict=True)):
        x = x.index_select(axis - axes, own.reshape(-1))
        place = place.unsqueeze(-1) * size + own.reshape(-1)
    counts, length = [own.shape[0] for own in places], [own.shape[1] for own in places]
    x = _together(x, counts, length)
    place = _together(place.reshape([c * n for c, n in zip(counts, length, strict=True)]), counts, length)
    best = x.argmax(-1, keepdim=True)
    where = place.expand(x.shape).gather(-1, best)
    return x.gather(-1, best).squeeze(-1), where.squeeze(-1)


def adaptive_avg_pool(axes: int) -> Callable[[Any, Sequence[int]], Any]:
    """The composition for so many axes."""

    def pool(self: Any, output_size: Sequence[int]) -> Any:
        sizes, counts = list(self.shape[-axes:]), _counts(output_size, axes)
        if all(isinstance(count, int) and count == 1 for count in counts):
            return self.mean(list(range(-axes, 0)), keepdim=True)
        if _is_even(sizes, counts):
            windows = [size // count for size, count in zip(sizes, counts, strict=True)]
            return getattr(torch.ops.aten, f"avg_pool{axes}d").default(self, windows, windows)
        if any(isinstance(size, int) and size == 0 for size in self.shape):
            return self.new_zeros((*self.shape[:-axes], *counts))
        x = self
        for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            if not surely(size == count):
                x = _averages(x, axis - axes, size, count)
        return x

    return pool


def _averages(x: Any, axis: int, size: Any, count: Any) -> Any:
    """The average of each window along one axis."""
    if isinstance(count, int) and count == 1:
        return x.mean(axis, keepdim=True)
    x = x.movedim(axis, -1)
    if not isinstance(count, int):  # there may be none: ONNX Runtime's sum over the windows then has another rank
        return x.matmul(_shares(size, count, x)).movedim(-1, axis)
    places, inside = _windows(size, count, x.device)
    taken = x.index_select(-1, places.reshape(-1)).reshape(*x.shape[:-1], count, _longest(size, count))
    total = torch.where(inside, taken, 0).sum(-1)
    return (total / inside.sum(-1).to(x.dtype)).movedim(-1, axis)


def _shares(size: Any, count: Any, like: Any) -> Any:
    """The share of each number, a row, in each window, a column."""
    start, end = _bounds(size, torch.arange(count, device=like.device), count)
    place = torch.arange(size, device=like.device).unsqueeze(-1)
    return ((place >= start) & (place < end)).to(like.dtype) / (end - start).to(like.dtype)


def _counts(output_size: Any, axes: int) -> list[Any]:
    given = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size]
    return given * (axes // len(given))


def _is_even(sizes: Sequence[Any], counts: Sequence[Any]) -> bool:
    numbers = all(isinstance(n, int) for n in (*sizes, *counts))
    return numbers and all(n > 0 and m > 0 and n % m == 0 for n, m in zip(sizes, counts, strict=True))


def _longest(size: Any, count: Any) -> Any:
    """No window is longer, at any size."""
    count = torch.sym_max(count, 1)
    return (size + count - 1) // count + 1


def _windows(size: Any, count: Any, device: torch.device) -> tuple[Any, Any]:
    """The places of each window, one window a row, and which of them are in it."""
    start, end = _bounds(size, torch.arange(count, device=device).unsqueeze(-1), count)
    places = start + torch.arange(_longest(size, count), device=device)
    return torch.minimum(places, end - 1), places < end


def _bounds(size: Any, window: Any, count: Any) -> tuple[Any, Any]:
    """The first place of each window, and the one after its last."""
    divisor = torch.sym_max(count, 1)
    return (window * size) // divisor, ((window + 1) * size + divisor - 1) // divisor


def _together(x: Any, counts: Sequence[Any], length: Sequence[Any]) -> Any:
    """From axes of windows one after the other to: the windows of all axes, then the numbers of one in one axis."""
    axes = len(counts)
    front = x.shape[: x.dim() - axes]
    apart = [size for pair in zip(counts, length, strict=True) for size in pair]
    x = x.reshape(*front, *apart)
    windows = range(len(front), len(front) + 2 * axes, 2)
    order = [*range(len(front)), *windows, *(axis + 1 for axis in windows)]
    return x.permute(order).reshape(*front, *counts, math.prod(length))


def _is_open(*sizes: Any) -> bool:
    """Check that a number varies, in lists too."""
    return any(_is_open(*s) if isinstance(s, (list, tuple)) else isinstance(s, torch.SymInt) for s in sizes)


def _varies(axes: int) -> Callable[[Any, Any], bool]:
    """Whether windows have sizes that vary; one window is the whole axis."""

    def varies(self: Any, output_size: Any) -> bool:
        counts = _counts(output_size, axes)
        return _is_open(self.shape[-axes:], counts) and not all(isinstance(c, int) and c == 1 for c in counts)

    return varies


def _full_sizes(x: Any, output_size: Any, axes: int) -> list[Any]:
    """None is the size that the axis has."""
    counts = _counts(output_size, axes)
    return [own if count is None else count for own, count in zip(x.shape[-axes:], counts, strict=True)]


def open_max_pool(axes: int) -> Callable[..., Any]:
    """adaptive_max_pool of torch.nn.functional, to as many windows as a size says."""

    @only_where(lambda input, output_size, *_, **__: _is_open(output_size, input.shape[-axes:]))
    def pool(input: Any, output_size: Any, return_indices: bool = False) -> Any:
        maxima, where = adaptive_max_pool(axes)(input, _full_sizes(input, output_size, axes))
        return (maxima, where) if return_indices else maxima

    return pool


def open_avg_pool(axes: int) -> Callable[..., Any]:
    """adaptive_avg_pool of torch.nn.functional, to as many windows as a size says."""

    @only_where(lambda input, output_size: _is_open(output_size))
    def pool(input: Any, output_size: Any) -> Any:
        return adaptive_avg_pool(axes)(input, _full_sizes(input, output_size, axes))

    return pool


for _axes in (1, 2, 3):
    _functional = f"torch.nn.functional.adaptive_{{}}_pool{_axes}d"
    composes(f"aten::adaptive_max_pool{_axes}d.default")(adaptive_max_pool(_axes))
    replaces(_functional.format("max"), _functional.format("max") + "_with_indices")(open_max_pool(_axes))
    replaces(_functional.format("avg"))(open_avg_pool(_axes))
for _axes in (1, 2):
    _applies = only_where(_varies(_axes))  # torch's own forms are right for sizes that do not vary
    composes(f"aten::adaptive_avg_pool{_axes}d.default")(_applies(adaptive_avg_pool(_axes)))
composes("aten::_adaptive_avg_pool2d.default")(only_where(_varies(2))(adaptive_avg_pool(2)))
composes("aten::adaptive_avg_pool3d.default", "aten::_adaptive_avg_pool3d.default")(adaptive_avg_pool(3))


# aten::fractional_max_pool2d, 3d with samples that are given
#
#     window o of m, each of k, begins at floor((o + u) a) - floor(u a), a = (n - k) / (m - 1); the last one at n - k
#
# with a sample u of each picture, channel and axis, so that each has its own windows. More samples than pictures may be
# given; the first ones count.
#
# Source of truth: ATen's native/FractionalMaxPool2d.cpp and FractionalMaxPool3d.cpp.


def fractional_max_pool(axes: int) -> Callable[..., Any]:
    """The composition for so many axes: the maxima, and where they are in the flat input."""

    def pool(self: Any, kernel_size: Sequence[Any], output_size: Sequence[Any], random_samples: Any) -> Any:
        batched = self.dim() == axes + 2
        x = self if batched else self.unsqueeze(0)
        sizes, counts, window = list(x.shape[-axes:]), _counts(output_size, axes), _counts(kernel_size, axes)
        place = torch.zeros((1,) * (2 + 2 * axes), dtype=torch.int64, device=x.device)
        for axis, (size, count, length) in enumerate(zip(sizes, counts, window, strict=True)):
            sample = random_samples[: x.shape[0], :, axis if axes == 3 else axes - 1 - axis].to(x.dtype)
            starts = _fractions(sample, size, count, length)  # picture, channel, window
            inner = torch.arange(length, device=x.device)
            spread = [*starts.shape[:2], *(count if a == axis else 1 for a in range(axes))]
            starts = starts.reshape(*spread, *[1] * axes)
            inner = inner.reshape([1] * (2 + axes) + [length if a == axis else 1 for a in range(axes)])
            place = place * size + starts + inner
        place = place.expand(*x.shape[:2], *counts, *window).flatten(-axes)
        taken = x.flatten(2).gather(2, place.flatten(2)).reshape(place.shape)
        best = taken.argmax(-1, keepdim=True)
        found = taken.gather(-1, best).squeeze(-1), place.gather(-1, best).squeeze(-1)
        return found if batched else tuple(part.squeeze(0) for part in found)

    return pool


def _fractions(sample: Any, size: Any, count: Any, length: Any) -> Any:
    """Where the windows begin."""
    last = torch.full((), size - length, dtype=torch.int64, device=sample.device)
    window = torch.arange(count, device=sample.device)
    step = last.to(sample.dtype) / max(count - 1, 1) if isinstance(count, int) else last / torch.sym_max(count - 1, 1)
    first = ((window + sample.unsqueeze(-1)) * step).to(torch.int64) - (sample.unsqueeze(-1) * step).to(torch.int64)
    return torch.where(window < count - 1, first, last)


def open_fractional_pool(axes: int) -> Callable[..., Any]:
    """fractional_max_pool of torch.nn.functional, of sizes that vary."""

    @only_where(lambda input, *_, **__: _is_open(input.shape[-axes:]))
    def pool(
        input: Any,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> Any:
        if _random_samples is None:
            return NotImplemented
        if output_size is None:
            ratios = _counts(output_ratio, axes)
            output_size = [torch.sym_int(n * r) for n, r in zip(input.shape[-axes:], ratios, strict=True)]
        maxima, where = fractional_max_pool(axes)(input, kernel_size, output_size, _random_samples)
        return (maxima, where) if return_indices else maxima

    return pool


for _axes in (2, 3):
    _functional = f"torch.nn.functional.fractional_max_pool{_axes}d"
    composes(f"aten::fractional_max_pool{_axes}d.default")(fractional_max_pool(_axes))
    replaces(_functional, f"{_functional}_with_indices")(open_fractional_pool(_axes))


# Tensor.unfold, torch.nn.functional.avg_pool1d, max_pool1d and their like, with windows or steps of a size that varies
#
#     y[..., i, ..., j] = x[..., i · step + j, ...]; the mean or the maximum of that, where there is no padding
#
# `avg_pool2d(x, x.shape[2:])` takes the whole picture. Torch takes the sizes of windows for numbers, and those of
# padding, `padding=[h % 2, w % 2]`, which is put around the input first.


@replaces("torch.Tensor.unfold")
@only_where(lambda self, dimension, size, step: _is_open(size, step))
def unfold(self: Any, dimension: int, size: Any, step: Any) -> Any:
    axis = dimension % self.dim()
    count = (self.shape[axis] - size) // step + 1
    places = torch.arange(count, device=self.device)[:, None] * step + torch.arange(size, device=self.device)
    taken = self.index_select(axis, places.reshape(-1))
    return taken.reshape(*self.shape[:axis], count, size, *self.shape[axis + 1 :]).movedim(axis + 1, -1)


def open_average(axes: int) -> Callable[..., Any]:
    """avg_pool of torch.nn.functional, over windows of a size that varies."""

    @only_where(lambda input, kernel_size, stride=None, padding=0, *_, **__: _is_open(kernel_size, stride, padding))
    def pool(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if _is_open(padding) and count_include_pad:
            input, padding = _surrounded(input, padding, axes, 0.0), 0
        if _is_open(padding) or any(_counts(padding, axes)) or ceil_mode or divisor_override is not None:
            return NotImplemented
        if not _is_open(kernel_size, stride):
            return getattr(torch.nn.functional, f"avg_pool{axes}d")(input, kernel_size, stride)
        return _unfolded(input, kernel_size, stride, axes).mean([*range(-axes, 0)])

    return pool


def open_maximum(axes: int) -> Callable[..., Any]:
    """max_pool of torch.nn.functional, over windows of a size that varies."""

    @only_where(lambda input, kernel_size, stride=None, padding=0, *_, **__: _is_open(kernel_size, stride, padding))
    def pool(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if return_indices or ceil_mode:
            return NotImplemented
        if _is_open(padding):
            input, padding = _surrounded(input, padding, axes, -math.inf), 0
        if not _is_open(kernel_size, stride):
            return getattr(torch.nn.functional, f"max_pool{axes}d")(input, kernel_size, stride, dilation=dilation)
        if any(_counts(padding, axes)) or any(d != 1 for d in _counts(dilation, axes)):
            return NotImplemented
        return _unfolded(input, kernel_size, stride, axes).amax([*range(-axes, 0)])

    return pool


def _surrounded(x: Any, padding: Any, axes: int, value: float) -> Any:
    sides = [size for size in reversed(_counts(padding, axes)) for _ in range(2)]
    return torch.nn.functional.pad(x, sides, value=value)


def _unfolded(x: Any, kernel_size: Any, stride: Any, axes: int) -> Any:
    """The windows, each in the last axes."""
    sizes = _counts(kernel_size, axes)
    steps = _counts(stride, axes) if stride is not None else sizes
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True), start=x.dim() - axes):
        taken = unfold(x, axis, size, step)
        x = x.unfold(axis, size, step) if taken is NotImplemented else taken
    return x


for _axes in (1, 2, 3):
    replaces(f"torch.nn.functional.avg_pool{_axes}d")(open_average(_axes))
    replaces(f"torch.nn.functional.max_pool{_axes}d")(open_maximum(_axes))


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
