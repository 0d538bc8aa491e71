"""Why two inputs that should be equal differ: usual differences in preprocessing, in plain words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from torchport.inputs.samples import Sample
from torchport.numerics.error_metrics import Figures, measure
from torchport.tensors import Array

# Why two inputs that should be the same are not: the usual differences in preprocessing, cause in plain words.
#
# Two images differ by how they were laid out (NHWC or NCHW), in which order their channels come (RGB or BGR), and how
# their numbers were scaled (0..255 or 0..1, mean and deviation). Each of these is undone in turn; what then fits, says
# what was done. Numbers that fit nothing get no explanation.

_ENOUGH = 1 << 20  # numbers; of a larger batch only the first samples are looked at
_MOST = 1 << 23  # numbers; a larger sample is not looked at, for the memory it takes
_LAYOUTS = {(0, 3, 1, 2): "NHWC", (0, 2, 3, 1): "NCHW", (2, 0, 1): "HWC", (1, 2, 0): "CHW"}


def same_inputs(a: Sample, b: Sample, names: Iterable[str]) -> list[Figures]:
    """Whether two samples feed a model the same, input by input; `problem` says how one differs, with the likely cause.

    Args:
        a: the reference's inputs.
        b: the other side's.
        names: the inputs to look at.

    Returns:
        Figures for each name, in order; `ok` where the inputs agree.

    Example:
        >>> [f.problem for f in same_inputs(recorded, ours, ["image"])]
        ["input 'image' differs by a factor of 255: one side scales to 0..1"]
    """
    return [_same_input(name, a, b) for name in names]


def _same_input(name: str, a: Sample, b: Sample) -> Figures:
    for here, there in ((a, b), (b, a)):
        if name not in here.arrays:
            array = there.arrays.get(name, np.zeros(0))
            cause = f"input '{name}' is missing in {here.name}"
            return Figures(name, array.shape, array.dtype.name, array.size, problem=cause)
    found = measure(name, a.arrays[name], b.arrays[name])
    if found.ok:
        return found
    why = hint(a.arrays[name], b.arrays[name])
    cause = f"input '{name}' {why}" if why else f"input '{name}' differs: {found.problem}"
    return dataclasses.replace(found, problem=cause)


def hint(a: Array, b: Array) -> str:
    """How `b` was made from what `a` was made from, as a phrase after "input 'x'"; empty if nothing fits.

    Example:
        >>> hint(image, image / 255)
        'differs by a factor of 255: one side scales to 0..1'
    """
    if "O" in (a.dtype.kind, b.dtype.kind) or {a.dtype.kind, b.dtype.kind} & set("SUc") or not a.size or not b.size:
        return ""
    if a.size != b.size:
        return _cut_or_padded(a, b)
    first, second = _first_part(a, b)
    if first.size > _MOST:
        return ""
    for cause, (x, y) in _arranged(first, second):
        scaled = relation(x, y)
        if scaled is not None:
            return _phrase(a, b, cause, scaled)
    return _alike(first, second)


def _phrase(a: Array, b: Array, cause: str, scaled: str) -> str:
    parts = [part for part in (cause, scaled) if part]
    if parts:
        return " and ".join(parts)
    if a.dtype == b.dtype:
        return "differs by rounding only, at most a ten-thousandth of its largest number"
    return f"has the same numbers, as {a.dtype.name} on one side and {b.dtype.name} on the other"


def _first_part(a: Array, b: Array) -> tuple[Array, Array]:
    """As many samples of the batch as are enough to tell."""
    if a.size <= _ENOUGH or a.ndim < 2 or a.shape[0] != b.shape[0]:
        return a, b
    rows = max(1, _ENOUGH // (a.size // a.shape[0]))
    return a[:rows], b[:rows]


def _arranged(a: Array, b: Array) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Ways to bring `a` into the shape of `b`, likely ones first, each with its name."""
    for cause, x in _laid_out(a, b):
        yield cause, (x, b)
    for cause, x in _laid_out(a, b):
        for axis in _channel_axes(b):
            order = "has its channels in the other order (RGB and BGR)"
            yield " and ".join(filter(None, [cause, order])), (_swapped(x, axis), b)


def _laid_out(a: Array, b: Array) -> Iterator[tuple[str, Array]]:
    if a.shape == b.shape:
        yield "", a
    elif _bare(a) == _bare(b):
        yield f"has another shape, {list(a.shape)} and {list(b.shape)}", a.reshape(b.shape)
    for axes in itertools.permutations(range(a.ndim)) if 1 < a.ndim <= 5 else ():
        if axes != tuple(range(a.ndim)) and tuple(a.shape[i] for i in axes) == b.shape:
            yield _layout(axes), a.transpose(axes)
    if a.shape != b.shape and _bare(a) != _bare(b):
        yield f"has the same numbers in another shape, {list(a.shape)} and {list(b.shape)}", a.reshape(b.shape)


def _bare(array: Array) -> list[int]:
    return [size for size in array.shape if size != 1]


def _layout(axes: tuple[int, ...]) -> str:
    if axes in _LAYOUTS:
        ours = _LAYOUTS[axes]
        other = ours.replace("HWC", "CHW") if "HWC" in ours else ours.replace("CHW", "HWC")
        return f"is laid out as {ours} on one side and {other} on the other"
    return f"is transposed: axes {list(axes)} of one side are the other's"


def _channel_axes(array: Array) -> list[int]:
    return [axis for axis in range(array.ndim) if array.shape[axis] in (3, 4)]


def _swapped(array: Array, axis: int) -> Array:
    """First and third channel changed places; a fourth is transparency and stays."""
    order = [2, 1, 0, 3][: array.shape[axis]]
    return np.take(array, order, axis=axis)


def _cut_or_padded(a: Array, b: Array) -> str:
    """Sequences of which one goes on after the other has ended."""
    if a.ndim != b.ndim or sum(m != n for m, n in zip(a.shape, b.shape, strict=True)) != 1:
        return ""
    axis = next(i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n)
    common = min(a.shape[axis], b.shape[axis])
    cause = f"has {a.shape[axis]} along axis {axis} on one side and {b.shape[axis]} on the other"
    for end, part in (("first", slice(0, common)), ("last", slice(-common, None))):
        cut = (slice(None),) * axis + (part,)
        if common and np.array_equal(a[cut], b[cut]):
            return f"{cause}; the {end} {common} agree: one side is padded or cut"
    return ""


def _alike(a: Array, b: Array) -> str:
    """Pictures of the same thing: another resize, crop or color conversion moves numbers, but not all at will."""
    if a.shape != b.shape or a.size < 64 or {a.dtype.kind, b.dtype.kind} <= set("biu"):
        return ""
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        alike = float(np.corrcoef(x, y)[0, 1])
    if not alike > 0.8:
        return ""
    return f"is alike on both sides (correlation {alike:.3f}) but not the same: another resize, crop or conversion?"


# How the numbers of one array follow from another's: the same, a factor, a shift, or one of each for every channel.

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
            cause = _one_axis(np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0), grain)
            if cause:
                return cause
    return None


def _one_axis(x: Array, y: Array, grain: Grain) -> str | None:
    lines = [_fitted(a, b) for a, b in zip(x, y, strict=True)]
    if not all(scale and _fits(a, b, scale, shift, grain) for a, b, (scale, shift) in zip(x, y, lines, strict=True)):
        return None
    means, deviations = zip(*(_mean_and_deviation(*line) for line in lines), strict=True)
    name = _known(means, deviations)
    cause = f"mean {_listed(means)} and deviation {_listed(deviations)}"
    return f"is normalized by channel on one side only: {f'{name} ' if name else ''}{cause}"


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
