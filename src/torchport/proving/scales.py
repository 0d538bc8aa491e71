"""The magnitude that an absolute tolerance is taken of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchport.proving.tolerances import FLOOR, Tolerance
from torchport.tensors import Array

LARGE = 1e4  # from here on a number may stand for "nothing": -1e9 where something is masked
_CHUNK = 1 << 20  # numbers looked at together, so that memory stays small beside the arrays
_FAR = 16  # masks with a score added to them are still near each other
_LIMITS = {*(float(np.finfo(t).max) for t in (np.float16, np.float32, np.float64)), 3.3895313892515355e38}


def floor(reference: Array, candidate: Array, limit: Tolerance) -> float:
    """The absolute tolerance for two tensors of one shape."""
    return limit.atol * max(scale(reference, candidate, limit), FLOOR)


def scale(reference: Array, candidate: Array, limit: Tolerance) -> float:
    """The largest finite magnitude in the reference, without what stands for "nothing".

    Beside -1e9, or the least number of a dtype, every other number is small, and so would every error be. Such numbers
    are left out if somebody wrote them, and both sides have them in the same places.
    """
    if reference.dtype.kind in "biu":
        return largest(reference)
    found = largest(reference)
    if found < LARGE:
        return found
    rest = largest(reference, below=found / _FAR)
    if limit.atol * found < rest:
        return found  # errors of the rest are seen beside it
    masks = _same_beyond(reference, candidate, found / _FAR)
    return rest if masks is not None and any(map(_is_written, masks)) else found


def largest(array: Array, below: float = math.inf) -> float:
    """The largest finite magnitude, of those below some."""
    found = 0.0
    for part in chunks(array):
        numbers = np.abs(part if part.dtype in (np.float32, np.float64) else part.astype(np.float64))
        most = float(numbers.max(initial=0.0))
        if not (math.isfinite(most) and most <= below):
            most = float(numbers.max(initial=0.0, where=np.isfinite(numbers) & (numbers <= below)))
        found = max(found, most)
    return found


def _same_beyond(reference: Array, candidate: Array, limit: float) -> set[Any] | None:
    """The finite numbers with a larger magnitude, if the candidate has the very same; None if it has not."""
    found: set[Any] = set()
    for ours, theirs in zip(chunks(reference), chunks(candidate), strict=True):
        numbers = np.abs(ours.astype(np.float64))
        far = np.isfinite(numbers) & (numbers > limit)
        if not np.array_equal(ours[far], theirs[far]):
            return None
        found.update(np.unique(ours[far]))
    return found


def _is_written(number: Any) -> bool:
    """Whether it is one that people write: of two digits, or the largest of its dtype."""
    with np.errstate(over="ignore"):
        short = type(number)(float(f"{float(number):.2g}"))
    return bool(short == number) or abs(float(number)) in _LIMITS


def flat(array: Array) -> Array:
    """The numbers in a row, complex ones as two."""
    row = np.ascontiguousarray(array).reshape(-1)
    return row.view(row.real.dtype) if row.dtype.kind == "c" else row


def chunks(array: Array) -> list[Array]:
    """The numbers in pieces of a row."""
    row = flat(array)
    return [row[i : i + _CHUNK] for i in range(0, row.size, _CHUNK)]
