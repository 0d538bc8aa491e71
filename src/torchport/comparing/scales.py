"""How the numbers of one array follow from another's: the same, a factor, a shift, or one of each for every channel."""

from __future__ import annotations

import numpy as np

from torchport.tensors import Array

Grain = tuple[float, float]

_CLOSE = 1e-4  # of the largest magnitude: what is left when the relation is the true one, rounding apart
_FEWEST = 8  # numbers: a line through two points always fits
_STEPS = 16
_ENDS = {255.0: "0..1", 256.0: "0..1", 127.5: "-1..1", 65535.0: "0..1"}
_KNOWN = {
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP's": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


def relation(a: Array, b: Array) -> str | None:
    """How to get from `a` to `b`, as a phrase after "input 'x'": empty for equal numbers, None if nothing fits.

    Args:
        a: any numbers.
        b: as many, in the same shape.

    Example:
        >>> relation(np.arange(9.0), np.arange(9.0) / 255)
        'differs by a factor of 255: one side scales to 0..1'
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    if {a.dtype.kind, b.dtype.kind} <= set("biu"):
        return _between_integers(x, y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return "" if np.array_equal(x, y, equal_nan=True) else None
    if _fits(x, y, 1.0, 0.0, (0.0, 0.0)):
        return ""
    if x.size < _FEWEST or x.std() == 0 or y.std() == 0:
        return None
    grain = _grain(a, b)
    return _factor(x, y, grain) or _line(x, y, grain) or _by_channel(x, y, grain)


def _between_integers(x: Array, y: Array) -> str | None:
    """Token numbers and the like: equal, or all off by the same."""
    away = np.unique(y - x)
    if away.size > 1:
        return None
    return f"is shifted by {abs(away[0]):g} on one side" if away[0] else ""


def _grain(a: Array, b: Array) -> Grain:
    """What rounding took away where one side was made integers of: half a step of that side.

    Of few steps, as in a mask of 0 and 1, half a step is so much that anything would fit; there it is none.
    """
    whole = [array.dtype.kind in "iu" and int(array.max()) - int(array.min()) >= _STEPS for array in (a, b)]
    return 0.5 * whole[0], 0.5 * whole[1]


def _fits(x: Array, y: Array, scale: float, shift: float, grain: Grain) -> bool:
    """Whether ``y = scale * x + shift``, but for rounding on either side."""
    room = _CLOSE * float(np.abs(y).max()) + 1.01 * (grain[0] * abs(scale) + grain[1])
    return bool(np.abs(scale * x + shift - y).max() <= room)


def _factor(x: Array, y: Array, grain: Grain) -> str | None:
    for known, name in _ENDS.items():
        if any(_fits(x, y, scale, 0.0, grain) for scale in (known, 1 / known)):
            return f"differs by a factor of {known:g}: one side scales to {name}"
    scale = float((x * y).sum() / (x * x).sum())
    if not scale or not _fits(x, y, scale, 0.0, grain):
        return None
    if np.isclose(scale, -1, rtol=1e-3):
        return "has the other sign on one side"
    return f"differs by a factor of {scale if abs(scale) > 1 else 1 / scale:.4g}"


def _line(x: Array, y: Array, grain: Grain) -> str | None:
    scale, shift = _fitted(x, y)
    if not scale or not _fits(x, y, scale, shift, grain):
        return None
    if np.isclose(scale, 1, rtol=1e-3):
        return f"is shifted by {abs(shift):.4g} on one side"
    for name, (low, high) in {"0..255": (0.0, 255.0), "0..1": (0.0, 1.0)}.items():
        ends = [scale * end + shift for end in (low, high)], [(end - shift) / scale for end in (low, high)]
        if any(np.allclose(pair, (-1, 1), atol=0.01) for pair in ends):
            return f"goes from -1 to 1 on one side and is {name} on the other"
    mean, deviation = _mean_and_deviation(scale, shift)
    return f"is normalized on one side only: (x - {mean:.4g}) / {deviation:.4g}"


def _fitted(x: Array, y: Array) -> tuple[float, float]:
    """The line of least squares."""
    away = x - x.mean()
    spread = float((away * away).sum())
    scale = float((away * (y - y.mean())).sum() / spread) if spread else 0.0
    return scale, float(y.mean() - scale * x.mean())


def _mean_and_deviation(scale: float, shift: float) -> tuple[float, float]:
    """``scale * x + shift`` as ``(x - mean) / deviation``, whichever side it was done on.

    A normalization makes numbers larger or 0..255 much smaller; undone, it is the other way about. The one whose mean
    lies within the deviations' reach of a picture's numbers, that is above zero, is taken.
    """
    if -shift / scale >= 0:
        return -shift / scale, 1 / scale
    return shift, scale


def _by_channel(x: Array, y: Array, grain: Grain) -> str | None:
    for axis in range(x.ndim):
        if 2 <= x.shape[axis] <= 4 and x.size // x.shape[axis] >= _FEWEST:
            told = _one_axis(np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0), grain)
            if told:
                return told
    return None


def _one_axis(x: Array, y: Array, grain: Grain) -> str | None:
    lines = [_fitted(a, b) for a, b in zip(x, y, strict=True)]
    if not all(scale and _fits(a, b, scale, shift, grain) for a, b, (scale, shift) in zip(x, y, lines, strict=True)):
        return None
    means, deviations = zip(*(_mean_and_deviation(*line) for line in lines), strict=True)
    name = _known(means, deviations)
    told = f"mean {_listed(means)} and deviation {_listed(deviations)}"
    return f"is normalized by channel on one side only: {f'{name} ' if name else ''}{told}"


def _known(means: tuple[float, ...], deviations: tuple[float, ...]) -> str:
    for name, (mean, deviation) in _KNOWN.items():
        for unit in (1.0, 255.0):
            for turn in (1, -1):  # channels may come in the other order, too
                wanted = [*mean[::turn], *deviation[::turn]]
                found = [*means, *deviations]
                if len(found) == len(wanted) and np.allclose(np.array(found) / unit, wanted, atol=0.002):
                    return name
    return ""


def _listed(numbers: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{n:.4g}" for n in numbers) + "]"
