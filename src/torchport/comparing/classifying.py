"""Whether two classifiers decide the same, whatever their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchport.comparing.error_pieces import PIECE
from torchport.tensors import Array


def top_places(reference: Array, candidate: Array) -> dict[str, Any]:
    """``top1`` and ``top5``, the shares of rows with the same decision; nothing if the tensors are no 2-D floats.

    A row with NaN decides nothing: it is the same only as a row with NaN in the same places; if every row of the
    reference has NaN, nothing is told. Of equal numbers the first one counts, on both sides: a candidate that gives the
    same number everywhere must not agree with everything.

    Example:
        >>> top_places(np.float32([[1, 3, 2]]), np.float32([[0, 9, 1]]))
        {'top1': 1.0, 'top5': None}
    """
    fits = reference.ndim == 2 and reference.shape[0] > 0 and reference.shape[1] > 1
    if not fits or not (_real(reference) and _real(candidate)):
        return {}
    if np.isnan(reference).any(axis=1).all():
        return {}
    rows, classes = reference.shape
    step = max(1, PIECE // classes)
    first = fifth = 0
    for start in range(0, rows, step):
        ranks = _ranks(reference[start : start + step], candidate[start : start + step])
        first += int((ranks < 1).sum())
        fifth += int((ranks < 5).sum())
    return {"top1": first / rows, "top5": fifth / rows if classes > 5 else None}


def _real(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _ranks(reference: Array, candidate: Array) -> Array:
    """How many of the candidate's numbers come before the one at the reference's best place, row by row."""
    a, b = reference.astype(np.float64), candidate.astype(np.float64)
    best = np.argmax(a, axis=1)
    value = np.take_along_axis(b, best[:, None], axis=1)
    earlier = np.arange(b.shape[1])[None, :] < best[:, None]
    ranks = ((b > value) | ((b == value) & earlier)).sum(axis=1)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    undecided = np.where((nan_a == nan_b).all(axis=1), 0, b.shape[1])
    return np.where(nan_a.any(axis=1) | nan_b.any(axis=1), undecided, ranks)
