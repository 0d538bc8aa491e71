"""aten::grid_sampler_3d, and aten::grid_sampler of volumes

    output at g = Σ over the eight corners c around g:  input[c] · Π (1 - |g - c|)     or the nearest alone

ONNX's GridSample takes volumes only from opset 20 on. Each corner is one gather from the flat volume; a corner outside
counts as nothing, or the place is first brought inside (border, reflection).

Source of truth: ATen's native/GridSampler.h and native/GridSampler.cpp.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from torchport.operators.registering import composes

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
