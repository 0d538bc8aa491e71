"""Why two inputs that should be the same are not: the usual differences in preprocessing, told in plain words.

Two images differ by how they were laid out (NHWC or NCHW), in which order their channels come (RGB or BGR), and how
their numbers were scaled (0..255 or 0..1, mean and deviation). Each of these is undone in turn; what then fits, says
what was done. Numbers that fit nothing get no explanation.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from torchport.comparing.scales import relation
from torchport.inputs.samples import Sample
from torchport.numerics.error_metrics import Figures, measure
from torchport.tensors import Array

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
            told = f"input '{name}' is missing in {here.name}"
            return Figures(name, array.shape, array.dtype.name, array.size, problem=told)
    found = measure(name, a.arrays[name], b.arrays[name])
    if found.ok:
        return found
    why = hint(a.arrays[name], b.arrays[name])
    told = f"input '{name}' {why}" if why else f"input '{name}' differs: {found.problem}"
    return dataclasses.replace(found, problem=told)


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
    for told, (x, y) in _arranged(first, second):
        scaled = relation(x, y)
        if scaled is not None:
            return _phrase(a, b, told, scaled)
    return _alike(first, second)


def _phrase(a: Array, b: Array, told: str, scaled: str) -> str:
    parts = [part for part in (told, scaled) if part]
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
    for told, x in _laid_out(a, b):
        yield told, (x, b)
    for told, x in _laid_out(a, b):
        for axis in _channel_axes(b):
            order = "has its channels in the other order (RGB and BGR)"
            yield " and ".join(filter(None, [told, order])), (_swapped(x, axis), b)


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
    told = f"has {a.shape[axis]} along axis {axis} on one side and {b.shape[axis]} on the other"
    for end, part in (("first", slice(0, common)), ("last", slice(-common, None))):
        cut = (slice(None),) * axis + (part,)
        if common and np.array_equal(a[cut], b[cut]):
            return f"{told}; the {end} {common} agree: one side is padded or cut"
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
