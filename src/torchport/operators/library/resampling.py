"""Antialiased resizing, grid sampling of volumes, affine grids; boxes and the regions of an image that they cut out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.composition import only_where
from torchport.operators.library.pooling import adaptive_avg_pool
from torchport.operators.registration import composes, replaces, translates
from torchport.torch_compat.shape_env import surely
from torchport.torch_compat.tracing import strides as strides_of

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_ALL = 2**63 - 1

# aten::_upsample_bilinear2d_aa, aten::_upsample_bicubic2d_aa
#
#     output = rows · input · columnsᵀ,  a weight for each place before and after, along each of the two axes
#
#     weight of k for i = f((k + 1/2 - center) / s),  center = scale · (i + 1/2),  s = max(scale, 1),  rows sum to 1
#     f: the triangle 1 - |t| up to 1; or Keys' cubic with a = -1/2 up to 2
#
# For a scale that is given, which PyTorch uses as it is: ONNX's Resize takes that of the sizes, 17 / 8 for a half of
# 17.
#
# Source of truth: ATen's native/cpu/UpSampleKernel.cpp. Where the output is one column wide, PyTorch 2.13 gives its
# first row for every row, unless the channels lie beside each other in memory; and so does this.

Filter = Callable[[torch.Tensor], torch.Tensor]


def _applies(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> bool:
    fixed = output_size is not None and all(isinstance(n, int) for n in output_size)
    return self.is_floating_point() and not align_corners and not (fixed and scale_factors is None)


@composes("aten::_upsample_bilinear2d_aa.vec")
@only_where(_applies)
def bilinear(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    return _resized(self, output_size, scale_factors, _triangle, 1.0)


@composes("aten::_upsample_bicubic2d_aa.vec")
@only_where(_applies)
def bicubic(self: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    return _resized(self, output_size, scale_factors, _cubic, 2.0)


def _resized(x: Any, size: Sequence[Any] | None, factors: Sequence[float] | None, shape: Filter, reach: float) -> Any:
    wide = x if x.dtype is torch.float64 else x.float()
    scales: Sequence[float | None] = factors or (None, None)
    if size is None:
        assert factors is not None
        size = [torch.sym_int(n * factor) for n, factor in zip(x.shape[-2:], factors, strict=True)]
    rows, columns = (
        _weights(before, after, scale, shape, reach, wide)
        for before, after, scale in zip(x.shape[-2:], size, scales, strict=True)
    )
    if not _channels_last(x):
        wider = torch.full((), size[1], device=x.device) > 1
        rows = rows.index_select(0, torch.arange(size[0], device=x.device) * wider)
    return (rows @ (wide @ columns.T)).to(x.dtype)


def _channels_last(x: Any) -> bool:
    """Check that the channels of a picture lie beside each other in memory."""
    channels, strides = x.shape[1], strides_of(x)
    return (
        isinstance(channels, int)
        and channels > 1
        and all(surely(stride == wanted) for stride, wanted in ((strides[1], 1), (strides[3], channels)))
    )


def _weights(before: Any, after: Any, given: Any, shape: Filter, reach: float, like: Any) -> torch.Tensor:
    """Of each place before for each place after; what is out of reach has none."""
    places = torch.arange(before, dtype=like.dtype, device=like.device)
    scale = torch.full((), before, dtype=like.dtype, device=like.device) / after if given is None else 1.0 / given
    stretch = torch.clamp(scale, min=1.0) if given is None else max(scale, 1.0)
    center = scale * (torch.arange(after, dtype=like.dtype, device=like.device) + 0.5)[:, None]
    first, last = (torch.clamp(torch.floor(center + side * stretch * reach + 0.5), min=0.0) for side in (-1, 1))
    near = (places >= first) & (places < last)
    weights = torch.where(near, shape((places + 0.5 - center) / stretch), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _triangle(t: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1 - t.abs(), min=0.0)


def _cubic(t: torch.Tensor) -> torch.Tensor:
    t = t.abs()
    inner = (1.5 * t - 2.5) * t * t + 1
    outer = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, inner, torch.where(t < 2, outer, 0.0))


# aten::grid_sampler_3d, and aten::grid_sampler of volumes
#
#     output at g = Σ over the eight corners c around g:  input[c] · Π (1 - |g - c|)     or the nearest alone
#
# ONNX's GridSample takes volumes only from opset 20 on. Each corner is one gather from the flat volume; a corner
# outside counts as nothing, or the place is first brought inside (border, reflection).
#
# Source of truth: ATen's native/GridSampler.h and native/GridSampler.cpp.

_LINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1


@composes("aten::grid_sampler.default")
def grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """What PyTorch calls for images and volumes."""
    if input.dim() == 4:
        return torch.ops.aten.grid_sampler_2d.default(input, grid, interpolation_mode, padding_mode, align_corners)
    return grid_sampler_3d(input, grid, interpolation_mode, padding_mode, align_corners)


@composes("aten::grid_sampler_3d.default")
def grid_sampler_3d(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    if interpolation_mode not in (_LINEAR, _NEAREST):
        raise NotImplementedError("grid_sampler of volumes is linear or nearest")
    sizes = input.shape[2:]
    flat = input.flatten(2)
    places = [  # the grid names the last axis first
        _place(grid[..., 2 - axis].flatten(1), size, padding_mode, align_corners) for axis, size in enumerate(sizes)
    ]
    if interpolation_mode == _NEAREST:
        output = _taken(flat, [place.round() for place in places], sizes)
    else:
        lower = [place.floor() for place in places]
        output = None
        for corner in itertools.product((0, 1), repeat=3):
            at = [low + step for low, step in zip(lower, corner, strict=True)]
            weight: Any = 1
            for place, near in zip(places, at, strict=True):
                weight = weight * (1 - (place - near).abs())
            term = _taken(flat, at, sizes) * weight.unsqueeze(1)
            output = term if output is None else output + term
    return output.reshape(*input.shape[:2], *grid.shape[1:4])


def _place(g: Any, size: Any, padding_mode: int, align_corners: bool) -> Any:
    """From -1 ... 1 to the numbers of the axis, inside if the padding says so."""
    place = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
    if padding_mode == _ZEROS:
        return place
    if padding_mode != _BORDER:
        place = _reflected(place, size, align_corners)
    return place.clamp(0, size - 1)


def _reflected(place: Any, size: Any, align_corners: bool) -> Any:
    """Thrown back at both ends, as often as it takes: at the outermost numbers, or half a step further out."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if isinstance(span, int) and span == 0:
        return torch.zeros_like(place)
    away = (place - low).abs()
    times = (away / span).floor()
    rest = away - times * span
    place = torch.where(times % 2 == 0, rest, span - rest) + low
    return torch.where(torch.isnan(place), 0, place)  # of one number, 0 / 0


def _taken(flat: Any, at: list[Any], sizes: Any) -> Any:
    """The numbers there; nothing outside."""
    index: Any = 0
    inside: Any = None
    for place, size in zip(at, sizes, strict=True):
        here = (place >= 0) & (place <= size - 1)
        inside = here if inside is None else inside & here
        index = index * size + torch.where(here, place, 0).long()
    index, inside = (t.unsqueeze(1).expand(-1, flat.shape[1], -1) for t in (index, inside))
    return torch.where(inside, flat.gather(2, index), 0)


# torch.nn.functional.affine_grid of a size that varies
#
#     grid[i, j] = theta · (x_j, y_i, 1),  x_j = (2j - (n - 1)) / (n - 1) with aligned corners, else (2j + 1) / n - 1
#
# Torch asks whether a size is one.


@replaces("torch.nn.functional.affine_grid")
@only_where(lambda theta, size, *_, **__: any(isinstance(n, torch.SymInt) for n in size[2:]))
def affine_grid(theta: Any, size: Sequence[Any], align_corners: bool | None = None) -> Any:
    axes = len(size) - 2
    along = [_centers(n, bool(align_corners), theta) for n in size[2:]]
    grids = torch.meshgrid(*along, indexing="ij")
    places = torch.stack([*reversed(grids), torch.ones_like(grids[0])], -1).reshape(1, -1, axes + 1)
    return (places @ theta.transpose(1, 2)).reshape(size[0], *size[2:], axes)


def _centers(size: Any, align_corners: bool, like: Any) -> Any:
    place = torch.arange(size, dtype=like.dtype, device=like.device)
    if align_corners:
        return (2 * place - (size - 1)) / torch.sym_max(size - 1, 1)
    return (2 * place + 1) / size - 1


# torch.nn.functional.interpolate by a factor that is computed from sizes
#
#     output[i] = input at (i + 1/2) / factor - 1/2, between two or four neighbors; nearest: at floor(i / factor)
#
# as DINOv2 resizes its position embeddings. Torch takes the factor for a number, and fixes it. Neighbors beyond the
# edge are the last ones inside.
#
# Source of truth: ATen's native/UpSample.h.

_PLACES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic")


def _is_factor(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *others: Any, **named: Any
) -> bool:
    factors = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor]
    plain = not (named.get("antialias") or named.get("recompute_scale_factor") or named.get("align_corners"))
    return plain and not any(others) and mode in _PLACES and any(isinstance(f, torch.SymFloat) for f in factors)


@replaces("torch.nn.functional.interpolate")
@only_where(lambda input, *args, **kwargs: _is_area(input, *args, **kwargs) or _is_factor(input, *args, **kwargs))
def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *others: Any, **named: Any
) -> Any:
    if mode != "area":
        return by_factor(input, scale_factor, mode)
    axes = input.dim() - 2
    if size is None:
        factors = list(scale_factor) if isinstance(scale_factor, (list, tuple)) else [scale_factor] * axes
        size = [torch.sym_int(n * factor) for n, factor in zip(input.shape[2:], factors, strict=True)]
    return adaptive_avg_pool(axes)(input, size if isinstance(size, (list, tuple)) else [size] * axes)


def _is_area(input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *_: Any, **__: Any) -> bool:
    """Averages over windows are adaptive pooling (pooling.py)."""
    return mode == "area" and any(isinstance(n, torch.SymInt) for n in input.shape[2:])


def by_factor(input: Any, scale_factor: Any, mode: str) -> Any:
    """Resize each axis after the other."""
    axes = input.dim() - 2
    factors = list(scale_factor) if isinstance(scale_factor, (list, tuple)) else [scale_factor] * axes
    x = input if input.dtype is torch.float64 else input.float()
    for axis, factor in enumerate(factors):
        before = input.shape[2 + axis]
        after = torch.sym_int(before * factor)
        step = (1 / torch.scalar_tensor(factor, dtype=torch.float64, device=x.device)).to(x.dtype)
        place = torch.arange(after, device=x.device)
        if mode.startswith("nearest"):
            x = x.index_select(2 + axis, _nearest(before, place, step, exact=mode == "nearest-exact"))
        else:
            at = (place + 0.5) * step - 0.5
            at = at if mode == "bicubic" else torch.where(_is_size(place, before), place.to(x.dtype), at)
            x = x.movedim(2 + axis, -1).matmul(_between(before, at, mode).T).movedim(-1, 2 + axis)
    return x.to(input.dtype)


def _nearest(before: Any, place: Any, step: Any, *, exact: bool) -> Any:
    """The same size, or twice as much, is taken as such, unlike the factor says."""
    near = ((place + (0.5 if exact else 0.0)) * step).long().clamp(max=before - 1)
    if exact:
        return near
    near = torch.where(_is_size(place, before), place, near)
    return torch.where(_is_size(place, 2 * before), place // 2, near)


def _is_size(place: Any, size: Any) -> Any:
    return torch.full((), place.shape[0], device=place.device) == size


def _between(before: Any, place: Any, mode: str) -> Any:
    """The weight of each number before for each place."""
    place = place if mode == "bicubic" else place.clamp(min=0)
    low = place.floor()
    part = place - low
    terms = [(0, 1 - part), (1, part)] if mode != "bicubic" else [(k - 1, w) for k, w in enumerate(_keys(part))]
    numbers = torch.arange(before, device=place.device)
    weights: Any = 0.0
    for step, weight in terms:
        at = (low.long() + step).clamp(0, before - 1).unsqueeze(-1)
        weights = weights + torch.where(at == numbers, weight.unsqueeze(-1), 0.0)
    return weights


def _keys(t: Any) -> list[Any]:
    """Keys' cubic with a = -3/4, of the four neighbors."""

    def inner(x: Any) -> Any:
        return (1.25 * x - 2.25) * x * x + 1

    def outer(x: Any) -> Any:
        return ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0

    return [outer(t + 1), inner(t), inner(1 - t), outer(2 - t)]


# torchvision::nms, torchvision::roi_align, torchvision::roi_pool, torchvision::ps_roi_align
#
# torch's exporter has translations of three of them while torchvision can be imported, torchvision has symbolics. Both
# differ from PyTorch where a box has its corners the wrong way round, and torch's of roi_pool takes other arguments.

# torchvision::nms
#
# ONNX's NonMaxSuppression puts the corners of a box in order, PyTorch does not: there such a box overlaps with none.
# One whose second corner is moved to the first has no area, and overlaps with none either.


@translates("torchvision::nms.default")
def nms(dets: Any, scores: Any, iou_threshold: float) -> Any:
    boxes = op.Cast(dets, to=ir.DataType.FLOAT)
    low = op.Slice(boxes, [0], [2], [1])
    high = op.Max(op.Slice(boxes, [2], [4], [1]), low)
    found = op.NonMaxSuppression(
        op.Unsqueeze(op.Concat(low, high, axis=1), [0]),
        op.Unsqueeze(op.Cast(scores, to=ir.DataType.FLOAT), [0, 1]),
        op.Constant(value=ir.tensor([_ALL])),
        op.Constant(value=ir.tensor([iou_threshold], dtype=ir.DataType.FLOAT)),
    )
    return op.Reshape(op.Slice(found, [2], [3], [1]), [-1])


# torchvision::roi_align, torchvision::roi_pool: rows of the image's number and the box. A sampling ratio of zero or
# less takes as many samples as fit, in ONNX zero does.


@translates("torchvision::roi_align.default")
def roi_align(
    input: Any,
    rois: Any,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    images = op.Cast(op.Squeeze(op.Slice(rois, [0], [1], [1]), [1]), to=ir.DataType.INT64)
    return op.RoiAlign(
        input,
        op.Slice(rois, [1], [5], [1]),
        images,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        spatial_scale=spatial_scale,
        output_height=pooled_height,
        output_width=pooled_width,
        sampling_ratio=max(sampling_ratio, 0),
    )


# A scale that is computed from sizes, as a pyramid of features finds its own: the boxes are scaled as by the operator.


@replaces("torch.ops.torchvision.roi_align")
@only_where(lambda input, rois, spatial_scale, *_, **__: not isinstance(spatial_scale, (int, float)))
def roi_align_by_scale(input: Any, rois: Any, spatial_scale: Any, *others: Any, **named: Any) -> Any:
    scaled = torch.cat([rois[:, :1], rois[:, 1:] * spatial_scale], 1)
    return torch.ops.torchvision.roi_align(input, scaled, 1.0, *others, **named)


@translates("torchvision::roi_pool.default")
def roi_pool(input: Any, rois: Any, spatial_scale: float, pooled_height: int, pooled_width: int) -> Any:
    """The second output, the places of the largest numbers, is for gradients."""
    pooled = op.MaxRoiPool(input, rois, pooled_shape=[pooled_height, pooled_width], spatial_scale=spatial_scale)
    return pooled, pooled


# torchvision::ps_roi_align: every bin has channels of its own,
#
#     output[k, c, i, j] = aligned[k, (c · height + i) · width + j, i, j]


@composes("torchvision::ps_roi_align.default")
def ps_roi_align(
    input: Any, rois: Any, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> Any:
    size = (pooled_height, pooled_width)
    aligned = torch.ops.torchvision.roi_align(input, rois, spatial_scale, *size, sampling_ratio, True)
    bins = aligned.reshape(rois.shape[0], input.shape[1] // (size[0] * size[1]), *size, *size)
    own = bins.diagonal(dim1=2, dim2=4).diagonal(dim1=2, dim2=3)
    return own, torch.zeros_like(own, dtype=torch.int32)
