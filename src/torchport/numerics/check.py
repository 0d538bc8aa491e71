"""The verdict on two arrays: an exact check for outputs, and a fast one for hundreds of inner tensors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from torchport.numerics.streaming import Errors
from torchport.numerics.tolerance import FLOOR, LARGE, Tolerance, flat_parts, largest, scale, tolerance
from torchport.results import OutputCheck
from torchport.tensors import FLOATS, Array, numpy_dtype

RESOLUTION = 2.0**-23  # of float32 near one
_CLEAN = 50.0  # dB


def rounded(array: Array, dtype: str) -> Array:
    """Float numbers in another float precision; what is no float stays as it is. What is too large becomes infinite."""
    if array.dtype.name not in FLOATS or dtype not in FLOATS:
        return array
    with np.errstate(over="ignore"):
        return array.astype(numpy_dtype(dtype), copy=False)


def check_output(name: str, reference: Array, candidate: Array, limit: Tolerance) -> OutputCheck:
    """Compare one output; `problem` says in words what is wrong, empty when it agrees."""
    problem = kind_problem(reference, candidate)
    if problem:
        return OutputCheck(name, math.inf, math.inf, math.nan, -math.inf, problem)
    if reference.dtype.kind in "OSU":
        return OutputCheck(name, 0.0, 0.0, 1.0, math.inf, text_problem(reference, candidate))
    found = Errors().over(reference, candidate, limit)
    problem = number_problem(found, reference, candidate)
    return OutputCheck(name, found.max_abs, found.max_rel, found.cosine, found.sqnr, problem)


def kind_problem(reference: Array, candidate: Array) -> str:
    """Return which of dtype and shape is another; empty if both are the same."""
    if reference.dtype != candidate.dtype:
        return f"dtype is {candidate.dtype}, expected {reference.dtype}"
    if reference.shape != candidate.shape:
        return f"shape is {list(candidate.shape)}, expected {list(reference.shape)}"
    return ""


def text_problem(reference: Array, candidate: Array) -> str:
    """Return that the texts of two arrays differ; empty if they do not."""
    return "" if np.array_equal(reference, candidate) else "texts differ"


def number_problem(found: Errors, reference: Array, candidate: Array) -> str:
    """Return how many numbers of two arrays differ, and which one first; empty if none does."""
    if found.first_wrong is None or _is_resolution(found, reference):
        return ""
    width = 2 if reference.dtype.kind == "c" else 1
    place = [int(i) for i in np.unravel_index(found.first_wrong // width, reference.shape)] if reference.shape else []
    kind = "" if found.first_special is None else ", NaN or Inf in other places"
    got, expected = (flat_parts(array)[found.first_wrong] for array in (candidate, reference))
    return f"{found.wrong} of {found.count} numbers differ{kind}; first at {place}: {got}, expected {expected}"


def _is_resolution(found: Errors, reference: Array) -> bool:
    """Check that errors are no larger than float32's resolution near one, and small beside the output.

    An output of numbers near 1e-5, such as the sigmoid of -10, is computed from numbers near one and has their error.
    """
    single = reference.dtype.name in ("float32", "complex64")
    return single and found.first_special is None and found.max_abs <= RESOLUTION and found.sqnr >= _CLEAN


# The quick check: a comparison of layers looks at hundreds of tensors.

_SAMPLES = 512
_FIRST = 16  # of them, which mostly tell already
_DOUBT = 1e-5  # of the limit: so near to it, rounding of this float32 arithmetic could change the verdict
_SURE = 1 - _DOUBT
_PIECE = 1 << 15  # numbers looked at in one go
_FINE = 1e-30  # a limit below that may be rounded to zero in float32


@dataclasses.dataclass(frozen=True)
class QuickCheck:
    """How far apart two tensors are, in short.

    Attributes:
        ok: whether they agree by the rule of the proof.
        max_abs: the largest difference.
        scale: the reference's largest magnitude.
    """

    ok: bool
    max_abs: float
    scale: float

    @property
    def relative(self) -> float:
        """The largest difference beside the largest number."""
        if self.max_abs == 0:
            return 0.0
        return self.max_abs / self.scale if self.scale else math.inf


def quick_check(reference: Array, candidate: Array, limit: Tolerance | None = None) -> QuickCheck:
    """Compare two tensors by the rule of `check_output`, in one pass where that is clear."""
    limit = limit or tolerance(reference.dtype.name)
    if reference.dtype.kind in "OSU" or candidate.dtype.kind in "OSU":
        same = reference.shape == candidate.shape and bool(np.array_equal(reference, candidate))
        return QuickCheck(same, 0.0 if same else math.inf, 0.0)
    if reference.dtype == np.float32 and candidate.dtype == np.float32 and reference.shape == candidate.shape:
        found = _in_float32(reference, candidate, limit)
        if found is not None:
            return found
    checked = check_output("", reference, candidate, limit)
    same_shape = reference.shape == candidate.shape
    return QuickCheck(
        checked.ok, checked.max_abs, scale(reference, candidate, limit) if same_shape else largest(reference)
    )


def _in_float32(reference: Array, candidate: Array, limit: Tolerance) -> QuickCheck | None:
    """The verdict where float32 arithmetic is enough to tell; in pieces that stay in the processor's cache."""
    ours, theirs = (np.ascontiguousarray(a).reshape(-1) for a in (reference, candidate))
    error, size = (np.empty(min(_PIECE, ours.size), np.float32) for _ in range(2))
    with np.errstate(invalid="ignore", over="ignore"):
        worst = most = 0.0
        for a, b in _pieces(ours, theirs):
            off, own = error[: a.size], size[: a.size]
            np.abs(np.subtract(b, a, out=off), out=off)
            worst, most = max(float(off.max()), worst), max(float(np.abs(a, out=own).max()), most)
            if not math.isfinite(worst) or most >= LARGE:
                return None
        floor = limit.atol * max(most, FLOOR)
        if floor < _FINE:
            return None
        if worst <= _SURE * floor:
            return QuickCheck(True, worst, most)
        if worst * _SURE > limit.rtol * most + floor:
            # more than is allowed anywhere, unless the resolution of float32 excuses it
            return QuickCheck(False, worst, most) if worst > RESOLUTION else None
        share = 0.0  # of what is allowed
        for a, b in _pieces(ours, theirs):
            off, own = error[: a.size], size[: a.size]
            np.abs(np.subtract(b, a, out=off), out=off)
            np.abs(a, out=own)
            own *= np.float32(limit.rtol)
            own += np.float32(floor)
            off /= own
            share = max(float(off.max()), share)
    if share > 1 and worst <= RESOLUTION:
        return None
    return QuickCheck(share < 1, worst, most) if abs(share - 1) > _DOUBT else None


def _pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    return (tuple(a[start : start + _PIECE] for a in arrays) for start in range(0, arrays[0].size, _PIECE))


class Sampled:
    """A few numbers spread over a tensor: most tensors that differ show it there."""

    def __init__(self, array: Array) -> None:
        flat = np.ascontiguousarray(array).reshape(-1)
        few = flat[:: max(1, flat.size // _SAMPLES)]
        self.few = few.copy() if few.dtype.kind in "biu" else few.astype(np.float64)
        self._array = array

    @functools.cached_property
    def size(self) -> float:
        """The largest magnitude, at least what is taken for it where all is zero."""
        return max(largest(self._array), FLOOR)


class Bucket:
    """Tensors of one shape and dtype, by name."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    @property
    def names(self) -> Collection[str]:
        return self._arrays.keys()

    def add(self, name: str, array: Array) -> None:
        self._arrays[name] = array

    @functools.cached_property
    def _all(self) -> dict[str, Sampled]:
        return {name: Sampled(array) for name, array in self._arrays.items()}

    @functools.cached_property
    def _first(self) -> Array:
        return np.stack([sampled.few[:_FIRST] for sampled in self._all.values()])

    @functools.cached_property
    def _sizes(self) -> Array:
        return np.array([[sampled.size] for sampled in self._all.values()])

    def may_agree(self, reference: Sampled, limit: Tolerance) -> list[str]:
        """Those that may agree with another tensor of this kind; that the others do not is certain."""
        first = _are_near(reference.few[:_FIRST], self._first, self._sizes, limit)
        left = [pair for pair, near in zip(self._all.items(), first, strict=True) if near.all()]
        return [name for name, own in left if _are_near(reference.few, own.few, own.size, limit).all()]


def _are_near(reference: Array, candidate: Array, size: Any, limit: Tolerance) -> Array:
    if reference.dtype.kind in "biu":
        return np.asarray(reference == candidate)
    with np.errstate(invalid="ignore"):
        near = np.abs(reference - candidate) <= 2 * limit.rtol * np.abs(reference) + 2 * limit.atol * size
    return near | (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))


def tells_little(array: Array) -> bool:
    """Whether a tensor is made of one number only: such ones agree by chance."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.size < 4 or bool((flat[: 1 << 16] == flat[0]).all())
