"""Compare two arrays. Comparison fails closed: what is not shown to be within the limit is wrong."""

from __future__ import annotations

import math

import numpy as np

from torchport.proving.scales import chunks, flat, floor
from torchport.proving.tolerances import Tolerance
from torchport.results import OutputCheck
from torchport.tensors import Array


def check_output(name: str, reference: Array, candidate: Array, limit: Tolerance) -> OutputCheck:
    """Compare one output; `problem` says in words what is wrong, empty when it agrees."""
    for what, want, got in (
        ("dtype", reference.dtype, candidate.dtype),
        ("shape", reference.shape, candidate.shape),
    ):
        if want != got:
            problem = f"{what} is {_show(got)}, expected {_show(want)}"
            return OutputCheck(name, math.inf, math.inf, math.nan, -math.inf, problem)
    if reference.dtype.kind in "OSU":
        same = bool(np.array_equal(reference, candidate))
        return OutputCheck(name, 0.0, 0.0, 1.0, math.inf, "" if same else "texts differ")
    return _Figures(floor(reference, candidate, limit), limit).check(name, reference, candidate)


def _show(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


class _Figures:
    """Error figures gathered chunk by chunk."""

    def __init__(self, floor: float, limit: Tolerance) -> None:
        self.limit = limit
        self.floor = floor
        self.max_abs = self.max_rel = 0.0
        self.signal = self.noise = self.dot = self.other = 0.0
        self.wrong = self.special = self.seen = 0
        self.first_wrong: int | None = None

    def check(self, name: str, reference: Array, candidate: Array) -> OutputCheck:
        ref, cand = flat(reference), flat(candidate)
        for a, b in zip(chunks(ref), chunks(cand), strict=True):
            self._add(a, b)
        if self.special:
            self.max_abs = self.max_rel = math.inf
        problem = self._problem(reference, ref, cand)
        return OutputCheck(name, self.max_abs, self.max_rel, self._cosine(), self._sqnr(), problem)

    def _add(self, ref: Array, cand: Array) -> None:
        if ref.dtype.kind in "biu":
            wrong = ref != cand
            a, b = ref.astype(np.float64), cand.astype(np.float64)
            error = np.abs(a - b)
            special = np.zeros(a.shape, bool)
        else:
            a, b = ref.astype(np.float64), cand.astype(np.float64)
            special = ~(np.isfinite(a) & np.isfinite(b))
            with np.errstate(invalid="ignore"):
                error = np.abs(a - b)
            agree = (np.isnan(a) & np.isnan(b)) | (a == b)
            with np.errstate(invalid="ignore"):
                within = error <= self.limit.rtol * np.abs(a) + self.floor
            wrong = np.where(special, ~agree, ~within)
        self._gather(a[~special], b[~special], error[~special])
        self.special += int((special & wrong).sum())
        self._count(wrong)

    def _gather(self, a: Array, b: Array, error: Array) -> None:
        self.max_abs = max(self.max_abs, float(error.max(initial=0.0)))
        nonzero = a != 0
        self.max_rel = max(self.max_rel, float((error[nonzero] / np.abs(a[nonzero])).max(initial=0.0)))
        self.signal += float(a @ a)
        self.noise += float(error @ error)
        self.dot += float(a @ b)
        self.other += float(b @ b)

    def _count(self, wrong: Array) -> None:
        if wrong.any() and self.first_wrong is None:
            self.first_wrong = self.seen + int(np.argmax(wrong))
        self.wrong += int(wrong.sum())
        self.seen += wrong.size

    def _cosine(self) -> float:
        length = math.sqrt(self.signal * self.other)
        if length == 0:
            return 1.0 if self.signal == self.other else 0.0
        if not math.isfinite(length):
            return math.nan  # squares that float64 cannot hold
        return min(1.0, self.dot / length)

    def _sqnr(self) -> float:
        """Signal to quantization noise ratio in decibels."""
        if self.noise == 0:
            return -math.inf if self.special else math.inf
        ratio = self.signal / self.noise if math.isfinite(self.noise) else 0.0
        return 10 * math.log10(ratio) if ratio else -math.inf

    def _problem(self, shaped: Array, ref: Array, cand: Array) -> str:
        if not self.wrong:
            return ""
        first = self.first_wrong or 0
        width = 2 if shaped.dtype.kind == "c" else 1
        place = [int(i) for i in np.unravel_index(first // width, shaped.shape)] if shaped.shape else []
        share = f"{self.wrong} of {self.seen} numbers"
        kind = ", NaN or Inf in other places" if self.special else ""
        return f"{share} differ{kind}; first at {place}: {cand[first]}, expected {ref[first]}"
