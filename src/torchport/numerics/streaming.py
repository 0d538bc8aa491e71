"""Error statistics of two arrays, gathered piece by piece so that memory stays small beside the arrays.

An error is ``|reference - candidate|``. Where both are the same NaN or Inf there is none; where only one is, or they
are different ones, it is infinite. A relative error is an error over the reference's magnitude; where the reference is
zero there is none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np

from torchport.numerics.tolerance import Tolerance, flat_parts, floor as floor_of
from torchport.tensors import Array

PIECE = 1 << 18  # numbers looked at together: a dozen float64 temporaries of 2 MB
WHOLE = 1 << 21  # errors sorted in one go; more are counted digit by digit
_THREADED = 8192  # numbers from which on BLAS may use threads
EDGES = tuple(10.0**power for power in range(-12, 7))


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stretch of both arrays: where it starts, its numbers as float64, and what is wrong with them."""

    start: int
    reference: Array
    candidate: Array
    error: Array
    special: Array
    wrong: Array


def pieces(reference: Array, candidate: Array, limit: Tolerance) -> Iterator[Piece]:
    """Iterate over both arrays in step; `wrong` decides whether two arrays agree, here and nowhere else."""
    floor = floor_of(reference, candidate, limit) if limit.atol else 0.0
    exact = reference.dtype.kind in "biu"
    for start in range(0, reference.size, PIECE):
        ref, cand = reference[start : start + PIECE], candidate[start : start + PIECE]
        a, b = ref.astype(np.float64), cand.astype(np.float64)
        with np.errstate(all="ignore"):
            error, special = _error(a, b)
            beyond = ~(error <= limit.rtol * np.abs(a) + floor)
        wrong = ref != cand if exact else np.where(special, error > 0, beyond)
        yield Piece(start, a, b, error, special, wrong)


def _error(a: Array, b: Array) -> tuple[Array, Array]:
    """The errors, and which of them stand beside a NaN or Inf."""
    error = np.abs(a - b)
    special = ~(np.isfinite(a) & np.isfinite(b))
    if special.any():
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error[special] = np.where(same[special], 0.0, np.inf)
    return error, special


def errors(piece: Piece, relative: bool) -> Array:
    """The errors of a piece; agreeing NaN and Inf have none, and zeros no relative one."""
    if not relative:
        return piece.error[~piece.special | (piece.error > 0)] if piece.special.any() else piece.error
    there = (piece.reference != 0) & ~piece.special
    size = np.abs(piece.reference)
    with np.errstate(all="ignore"):
        rates = piece.error / size if there.all() else piece.error[there] / size[there]
    return np.concatenate([rates, piece.error[piece.special & (piece.error > 0)]])


def percentile(values: Callable[[], Iterable[Array]], count: int, share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; exact, whatever their number.

    Args:
        values: gives the values (none negative, none NaN) in pieces, as often as it is asked.
        count: how many there are.
        share: 0.99 for the 99th percentile.

    Example:
        >>> percentile(lambda: [np.array([1.0, 2.0]), np.array([3.0])], 3, 0.5)
        2.0
    """
    if not count:
        return 0.0
    rank = max(0, math.ceil(share * count - 1e-9) - 1)
    if count > WHOLE:
        return _by_digits(values, rank)
    whole = np.concatenate(list(values()))
    whole.partition(rank)
    return float(whole[rank])


def _by_digits(values: Callable[[], Iterable[Array]], rank: int) -> float:
    """The value of that rank. Floats that are not negative are ordered as their bits are: 16 of them a pass."""
    known = 0
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, np.int64)
        for part in values():
            bits = np.abs(part).view(np.int64)  # abs: minus zero has the sign bit set
            if shift < 48:
                bits = bits[bits >> (shift + 16) == known]
            counts += np.bincount((bits >> shift) & 0xFFFF, minlength=1 << 16)
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, rank, side="right"))
        rank -= int(upto[digit - 1]) if digit else 0
        known = known << 16 | digit
    return float(np.array(known, np.int64).view(np.float64))


def max_ulp(reference: Array, candidate: Array) -> int | None:
    """The most representable numbers between two that should be one; for integers their largest distance.

    NaN and Inf have no such distance and are left out. None where the dtypes differ or are no numbers.
    """
    if reference.dtype != candidate.dtype or reference.dtype.kind in "OSUm":
        return None
    worst = 0
    for start in range(0, reference.size, PIECE):
        a, b = reference[start : start + PIECE], candidate[start : start + PIECE]
        if a.dtype.kind not in "biu":
            finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
            a, b = _steps(a[finite]), _steps(b[finite])
        worst = max(worst, int(_distance(a, b).max(initial=0)))
    return worst


def _steps(numbers: Array) -> Array:
    """Floats as integers in the same order, neighbors one apart, both zeros 0."""
    bits = numbers.view(np.dtype(f"i{numbers.dtype.itemsize}")).astype(np.int64)
    lowest = -(1 << (8 * numbers.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits, bits)


def _distance(a: Array, b: Array) -> Array:
    """``|a - b|`` of integers, exact: unsigned, since the distance of two int64 may need 64 bits."""
    wide = np.uint64 if a.dtype == np.uint64 else np.int64
    high, low = np.maximum(a, b).astype(wide), np.minimum(a, b).astype(wide)
    return high.view(np.uint64) - low.view(np.uint64)


def counted(values: Array) -> Array:
    """How many errors are exactly zero, below the first edge, between each two, and from the last on."""
    zeros = int((values == 0).sum())
    places = np.searchsorted(np.array(EDGES), values[values != 0], side="right")
    return np.concatenate([[zeros], np.bincount(places, minlength=len(EDGES) + 1)])


class Errors:
    """Error statistics of two arrays, added up piece by piece.

    Attributes:
        count: the numbers looked at; a complex one is two.
        finite: those of them that are finite in both arrays.
        wrong: those beyond the tolerance.
        total: the sum of the finite absolute errors.
        first_special: where NaN or Inf first disagree; None if they never do.

    Example:
        >>> Errors().over(reference, candidate, Tolerance(1e-3, 1e-5)).max_abs
    """

    def __init__(self) -> None:
        self.count = self.finite = self.wrong = self.rel_count = 0
        self.total = self.rel_total = self.max_abs = self.max_rel = 0.0
        self.signal = self.noise = self.dot = self.other = 0.0
        self.first_wrong: int | None = None
        self.first_special: int | None = None

    def over(self, reference: Array, candidate: Array, limit: Tolerance) -> Self:
        """Add all pieces of two arrays of as many numbers."""
        with np.errstate(all="ignore"):
            for piece in pieces(flat_parts(reference), flat_parts(candidate), limit):
                self.add(piece, errors(piece, False), errors(piece, True))
        return self

    def add(self, piece: Piece, absolute: Array, relative: Array) -> None:
        """Add a piece, whose errors are given."""
        self.count += piece.wrong.size
        self.wrong += int(piece.wrong.sum())
        self.first_wrong = _first(self.first_wrong, piece.start, piece.wrong)
        self.first_special = _first(self.first_special, piece.start, piece.special & piece.wrong)
        self.max_abs = max(self.max_abs, float(absolute.max(initial=0.0)))
        self.max_rel = max(self.max_rel, float(relative.max(initial=0.0)))
        self.rel_count += relative.size
        self.rel_total += float(relative.sum())
        finite = ~piece.special if piece.special.any() else slice(None)
        self._add_products(piece.reference[finite], piece.candidate[finite], piece.error[finite])

    def _add_products(self, a: Array, b: Array, error: Array) -> None:
        self.finite += error.size
        self.total += float(error.sum())
        self.signal += _product(a, a)
        self.other += _product(b, b)
        self.dot += _product(a, b)
        self.noise += _product(error, error)

    @property
    def mean_abs(self) -> float:
        return self.total / max(1, self.finite) if self.first_special is None else math.inf

    @property
    def mean_rel(self) -> float:
        return self.rel_total / max(1, self.rel_count)

    @property
    def cosine(self) -> float:
        square = self.signal * self.other  # its root is exact where the arrays are equal
        length = math.sqrt(square) if 0 < square < math.inf else math.sqrt(self.signal) * math.sqrt(self.other)
        if length == 0:
            return 1.0 if self.signal == self.other else 0.0
        return max(-1.0, min(1.0, self.dot / length)) if math.isfinite(length) else math.nan

    @property
    def sqnr(self) -> float:
        """The signal to quantization noise ratio in decibels."""
        if self.noise == 0:
            return math.inf if self.first_special is None else -math.inf
        if self.signal == 0 or not math.isfinite(self.noise):
            return -math.inf
        ratio = self.signal / self.noise
        return 10 * (math.log10(ratio) if 0 < ratio < math.inf else math.log10(self.signal) - math.log10(self.noise))


class Distribution(Errors):
    """The statistics, and how the errors are spread: their histogram, percentiles, and counts of NaN and Inf."""

    def __init__(self, reference: Array, candidate: Array, limit: Tolerance) -> None:
        super().__init__()
        self._parts = flat_parts(reference), flat_parts(candidate), limit
        self._keep = self._parts[0].size <= WHOLE
        self._kept: dict[bool, list[Array]] = {False: [], True: []}  # absolute and relative errors
        self.special = np.zeros(4, np.int64)  # NaN in the reference and the candidate, Inf in both
        self.histogram = np.zeros(len(EDGES) + 2, np.int64)
        self.over(reference, candidate, limit)

    def add(self, piece: Piece, absolute: Array, relative: Array) -> None:
        super().add(piece, absolute, relative)
        both = (piece.reference, piece.candidate)
        self.special += [int(test(side).sum()) for test in (np.isnan, np.isinf) for side in both]
        self.histogram += counted(absolute)
        if self._keep:
            self._kept[False].append(absolute)
            self._kept[True].append(relative)

    def p99(self, *, relative: bool) -> float:
        """The value that 99 of 100 errors do not exceed; where the errors are too many to keep, by further passes."""
        count = self.rel_count if relative else int(self.histogram.sum())
        return percentile(lambda: self._errors(relative), count, 0.99)

    def _errors(self, relative: bool) -> Iterable[Array]:
        return self._kept[relative] if self._keep else (errors(piece, relative) for piece in pieces(*self._parts))


def _product(a: Array, b: Array) -> float:
    """Return ``a @ b``; of long arrays without BLAS, whose threads wait for each other longer than the sum takes."""
    return float(a @ b if a.size < _THREADED else np.einsum("i,i->", a, b))


def _first(known: int | None, start: int, mask: Array) -> int | None:
    return start + int(np.argmax(mask)) if known is None and mask.any() else known
