"""How far a faster model may be from the model as given, and how far it is.

Without a tolerance the limits are those of a proof, by dtype. With one, a loss is at most the tolerance:

    cosine  1 - cosine similarity of an output over all samples; the share of integers and booleans that differ
    top1    the share of rows whose largest number stands in another place
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from torchport.benchmark.reference import Judgment, Reference
from torchport.errors import OptionError
from torchport.tensors import Array

Metric = Literal["cosine", "top1"]
METRICS: tuple[Metric, ...] = ("cosine", "top1")


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The largest loss that is allowed; None for the limits of a proof."""

    loss: float | None = None
    metric: Metric = "cosine"

    def __str__(self) -> str:
        return "float32" if self.loss is None else f"{self.loss:.3g} by {self.metric}"


def read_tolerance(given: str | float | None, metric: str) -> Tolerance:
    """Return the tolerance that a user gives: ``float32``, ``0.01`` or ``1%``.

    Raises:
        OptionError: it is no share, or the metric is not known.
    """
    if metric not in METRICS:
        raise OptionError(f"there is no metric '{metric}'", next_step=f"use one of: {', '.join(METRICS)}")
    known: Metric = "top1" if metric == "top1" else "cosine"
    if given is None or given == "float32":
        return Tolerance(None, known)
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if isinstance(given, bool) or not 0 < share < 1:
        raise OptionError(
            f"{given!r} is no tolerance",
            where=f"--tolerance {given}, in Python tolerance={given!r}",
            next_step="give float32, or the largest loss as a share: 0.01 or 1%",
        )
    return Tolerance(share, known)


@dataclasses.dataclass
class _Sums:
    """What one output adds up to over samples."""

    products: float = 0.0
    wanted: float = 0.0
    given: float = 0.0
    differing: int = 0
    rows: int = 0
    exact: bool = False
    problem: str = ""


class Loss:
    """Adds up the loss of a candidate's outputs, sample by sample.

    Example:
        >>> loss = Loss(("logits",), "cosine")
        >>> loss.add([np.float32([1, 0])], [np.float32([1, 0])])
        >>> loss.value
        0.0
    """

    def __init__(self, names: Sequence[str], metric: Metric) -> None:
        self._names, self._metric = names, metric
        self._sums = [_Sums() for _ in names]
        self._problem = ""

    def add(self, wanted: Sequence[Array], given: Sequence[Array]) -> None:
        """Take the outputs of one sample."""
        if len(wanted) != len(given):
            self._problem = f"it gives {len(given)} outputs instead of {len(wanted)}"
            return
        for sums, want, got in zip(self._sums, wanted, given, strict=True):
            sums.problem = sums.problem or _kind_problem(want, got)
            if not sums.problem:
                self._add(sums, want, got)

    def _add(self, sums: _Sums, want: Array, got: Array) -> None:
        if want.dtype.kind not in "fcV":
            sums.exact = True
            sums.rows += want.size
            sums.differing += int(np.count_nonzero(want != got))
            return
        a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (want, got))
        if self._metric == "top1" and a.ndim and a.shape[-1] > 1 and a.dtype.kind == "f":
            sums.exact = True
            places = [x.reshape(-1, x.shape[-1]).argmax(axis=1) for x in (a, b)]
            sums.rows += len(places[0])
            sums.differing += int(np.count_nonzero(places[0] != places[1]))
            return
        same = ~np.isfinite(a) & (a == b)  # infinities that agree say nothing
        a, b = np.where(same, 0, a).ravel(), np.where(same, 0, b).ravel()
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            sums.problem = "NaN or infinity at other places"
            return
        sums.products += float(np.vdot(a, b).real)
        sums.wanted += float(np.vdot(a, a).real)
        sums.given += float(np.vdot(b, b).real)

    @property
    def losses(self) -> dict[str, float]:
        """Return the loss of each output; infinite where it cannot be compared."""
        return {name: _loss(sums) for name, sums in zip(self._names, self._sums, strict=True)}

    @property
    def value(self) -> float:
        """Return the largest loss of any output."""
        return math.inf if self._problem else max(self.losses.values(), default=0.0)

    @property
    def reason(self) -> str:
        """Return the output with the largest loss, and why it is so large."""
        if self._problem:
            return self._problem
        if not self._names:
            return ""
        name = max(self.losses, key=lambda name: self.losses[name])
        sums = self._sums[list(self._names).index(name)]
        return f"output '{name}': {sums.problem or f'a loss of {self.losses[name]:.2g}'}"


def _kind_problem(want: Array, got: Array) -> str:
    if want.shape != got.shape:
        return f"its shape is {list(got.shape)} instead of {list(want.shape)}"
    if want.dtype != got.dtype:
        return f"its dtype is {got.dtype} instead of {want.dtype}"
    return ""


def _loss(sums: _Sums) -> float:
    if sums.problem:
        return math.inf
    if sums.exact:
        return sums.differing / sums.rows if sums.rows else 0.0
    if not sums.wanted and not sums.given:
        return 0.0
    if not sums.wanted or not sums.given:
        return 1.0
    return max(0.0, 1.0 - sums.products / math.sqrt(sums.wanted * sums.given))


@dataclasses.dataclass(frozen=True)
class TolerantReference(Reference):
    """Outputs that are taken as right within a tolerance."""

    tolerance: Tolerance = dataclasses.field(default_factory=Tolerance)

    def judge(self, outputs: Sequence[Array]) -> Judgment:
        strict = super().judge(outputs)
        if self.tolerance.loss is None:
            return strict
        loss = Loss(self.names, self.tolerance.metric)
        loss.add(self.outputs, outputs)
        if loss.value <= self.tolerance.loss:
            return Judgment("right", strict.max_abs, strict.max_rel)
        return Judgment("wrong", strict.max_abs, strict.max_rel, loss.reason)
