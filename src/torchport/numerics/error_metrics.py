"""Every error metric of two tensors, and top-1 and top-5 agreement of classifiers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torchport.errors import OptionError
from torchport.numerics.check import kind_problem, number_problem, text_problem
from torchport.numerics.streaming import EDGES, PIECE, Distribution, max_ulp
from torchport.numerics.tolerance import Tolerance, flat_parts, tolerance as default_tolerance
from torchport.tensors import Array

Metric = Callable[[Array, Array], float]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One number that is wrong."""

    index: tuple[int, ...]
    reference: Any
    candidate: Any

    def __str__(self) -> str:
        return f"at {list(self.index)}: {self.candidate} instead of {self.reference}"


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many absolute errors are how large.

    Attributes:
        exact: how many are zero.
        edges: powers of ten.
        counts: below the first edge, between each two, and from the last edge on: one more than there are edges.
    """

    exact: int = 0
    edges: tuple[float, ...] = EDGES
    counts: tuple[int, ...] = (0,) * (len(EDGES) + 1)

    def __str__(self) -> str:
        names = [f"<{self.edges[0]:.0e}", *(f"{e:.0e}" for e in self.edges)]
        told = [f"{name}: {n}" for name, n in zip(["exact", *names], [self.exact, *self.counts], strict=True) if n]
        return ", ".join(told)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is to be known about two tensors that should be the same.

    Attributes:
        count: how many numbers were compared; a complex one is two.
        max_rel: relative errors are over the reference's magnitude, where that is not zero.
        p99_abs: 99 of 100 errors are not above it.
        sqnr: signal to quantization noise ratio in decibels, infinite for equal tensors.
        max_ulp: the most representable numbers between two that should be one; None where dtypes differ.
        mismatched: the fraction of numbers beyond the tolerance.
        first_special: where NaN or Inf first disagree.
        top1: for a 2-D float tensor, the share of rows that have their largest number in the same place.
        top5: the share of rows whose largest number is among the candidate's five largest.
        own: the caller's own metrics.
        problem: what is wrong in words; empty when the two agree.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    max_abs: float = math.inf
    mean_abs: float = math.inf
    p99_abs: float = math.inf
    max_rel: float = math.inf
    mean_rel: float = math.inf
    p99_rel: float = math.inf
    cosine: float = math.nan
    sqnr: float = -math.inf
    max_ulp: int | None = None
    mismatched: float = 1.0
    nan_reference: int = 0
    nan_candidate: int = 0
    inf_reference: int = 0
    inf_candidate: int = 0
    first_special: tuple[int, ...] | None = None
    first_mismatch: Mismatch | None = None
    histogram: Histogram = Histogram()
    top1: float | None = None
    top5: float | None = None
    own: Mapping[str, float] = dataclasses.field(default_factory=dict)
    ok: bool = False
    problem: str = ""


def measure(
    name: str,
    reference: Array,
    candidate: Array,
    *,
    tolerance: Tolerance | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Figures:
    """Compare two tensors. What is not shown to be within the tolerance is wrong.

    Args:
        tolerance: how far apart they may be; by the reference's dtype if not given. Integers are exact in any case.
        metrics: your own figures, each a function of the reference and the candidate.

    Raises:
        OptionError: one of `metrics` fails or gives no number.

    Example:
        >>> measure("y", np.float32([1, 2]), np.float32([1, 2.1])).problem
        "1 of 2 numbers differ; first at [1]: 2.0999999046325684, expected 2.0"
    """
    reference, candidate = _plain(reference), _plain(candidate)
    limit = _limit(reference.dtype.name, tolerance)
    bare = Figures(name, reference.shape, reference.dtype.name, flat_parts(reference).size)
    problem = kind_problem(reference, candidate)
    found: dict[str, Any] = {"own": _own(metrics or {}, reference, candidate)}
    if reference.shape == candidate.shape:
        if "O" in (reference.dtype.kind, candidate.dtype.kind):
            problem = problem or text_problem(reference, candidate)
            found |= _text_figures(reference, candidate)
        elif flat_parts(reference).size == flat_parts(candidate).size:  # else complex against real
            errors = Distribution(reference, candidate, limit)
            problem = problem or number_problem(errors, reference, candidate)
            found |= _number_figures(errors, reference, candidate)
        found |= top_places(reference, candidate)
    return dataclasses.replace(bare, ok=not problem, problem=problem, **found)


def measure_sequence(name: str, items: Sequence[Figures], lengths: tuple[int, int]) -> Figures:
    """A sequence of tensors as one: the worst of its items.

    Args:
        items: the figures of each item.
        lengths: how many tensors there are in the reference and in the candidate.

    Example:
        >>> measure_sequence("s", [measure("s[0]", a, b)], (1, 1)).problem
        'item 0: 1 of 2 numbers differ; first at [1]: 2.1, expected 2.0'
    """
    expected, found = lengths
    if expected != found:
        return Figures(name, (), "sequence", 0, problem=f"{_tensors(found)} instead of {_tensors(expected)}")
    if not items:
        nothing = dict.fromkeys(("max_abs", "mean_abs", "p99_abs", "max_rel", "mean_rel", "p99_rel"), 0.0)
        return Figures(name, (), "sequence", 0, ok=True, sqnr=math.inf, mismatched=0.0, **nothing)  # type: ignore[arg-type]
    wrong = [f"item {number}: {f.problem}" for number, f in enumerate(items) if not f.ok]
    return dataclasses.replace(merged(items), name=name, problem=wrong[0] if wrong else "")


def _tensors(count: int) -> str:
    return "one tensor" if count == 1 else f"{count or 'no'} tensors"


def _limit(dtype: str, given: Tolerance | None) -> Tolerance:
    """Integers are exact, int4 and other lent ones too, which look like floats to numpy."""
    return default_tolerance(dtype) if given is None or dtype.startswith(("int", "uint")) else given


def _plain(array: Array) -> Array:
    """In C order, and texts without a length: ``<U3`` and ``<U5`` are the same kind."""
    array = np.asarray(array, order="C")
    return array.astype(object) if array.dtype.kind in "SU" else array


def _own(metrics: Mapping[str, Metric], reference: Array, candidate: Array) -> dict[str, float]:
    if reference.shape != candidate.shape:
        return dict.fromkeys(metrics, math.nan)
    return {key: _asked(key, metric, reference, candidate) for key, metric in metrics.items()}


def _asked(key: str, metric: Metric, reference: Array, candidate: Array) -> float:
    try:
        return float(metric(reference, candidate))
    except Exception as error:
        raise OptionError(
            f"the metric '{key}' failed: {type(error).__name__}: {error}",
            next_step="it is given two arrays of the same shape, and has to give one number",
        ) from error


def _text_figures(reference: Array, candidate: Array) -> dict[str, Any]:
    if reference.dtype != candidate.dtype:
        return {}
    differ = np.array(reference != candidate, bool).reshape(-1)
    share = float(differ.mean()) if differ.size else 0.0
    size = math.inf if share else 0.0
    same: dict[str, Any] = dict.fromkeys(("max_abs", "mean_abs", "p99_abs", "max_rel", "mean_rel", "p99_rel"), size)
    first = _mismatch(reference, candidate, int(np.argmax(differ)), 1) if share else None
    return (
        same
        | {"mismatched": share, "first_mismatch": first, "cosine": math.nan if share else 1.0}
        | ({} if share else {"sqnr": math.inf})
    )


def _mismatch(reference: Array, candidate: Array, place: int, width: int) -> Mismatch:
    index = _index(reference, place, width)
    return Mismatch(index, _scalar(reference[index]), _scalar(candidate[index]))


def _index(array: Array, place: int, width: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(place // width, array.shape)) if array.shape else ()


def _scalar(value: Any) -> Any:
    """A value JSON knows: a bfloat16 as a float, complex numbers and bytes as they are written."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, (bool, int, float, str)):
        return plain
    return str(plain) if isinstance(plain, (complex, bytes)) else float(plain)


def _number_figures(errors: Distribution, reference: Array, candidate: Array) -> dict[str, Any]:
    width = 2 if reference.dtype.kind == "c" else 1
    nan_reference, nan_candidate, inf_reference, inf_candidate = (int(n) for n in errors.special)
    wrong, special = errors.first_wrong, errors.first_special
    return {
        "max_abs": errors.max_abs,
        "mean_abs": errors.mean_abs,
        "p99_abs": errors.p99(relative=False),
        "max_rel": errors.max_rel,
        "mean_rel": errors.mean_rel,
        "p99_rel": errors.p99(relative=True),
        "cosine": errors.cosine,
        "sqnr": errors.sqnr,
        "max_ulp": max_ulp(flat_parts(reference), flat_parts(candidate)),
        "mismatched": errors.wrong / max(1, errors.count),
        "nan_reference": nan_reference,
        "nan_candidate": nan_candidate,
        "inf_reference": inf_reference,
        "inf_candidate": inf_candidate,
        "first_special": None if special is None else _index(reference, special, width),
        "first_mismatch": None if wrong is None else _mismatch(reference, candidate, wrong, width),
        "histogram": Histogram(int(errors.histogram[0]), EDGES, tuple(int(n) for n in errors.histogram[1:])),
    }


_LARGEST = ("max_abs", "p99_abs", "max_rel", "p99_rel")
_SMALLEST = ("cosine", "sqnr")
_ADDED = ("count", "nan_reference", "nan_candidate", "inf_reference", "inf_candidate")


def merged(figures: Sequence[Figures]) -> Figures:
    """One tensor over several samples: the worst of the errors, the mean of the means, counts added up.

    The caller's own metrics are averaged, since nobody knows which way they get worse.

    Example:
        >>> merged([measure("y", a1, b1), measure("y", a2, b2)]).max_abs
    """
    worst = max(figures, key=lambda f: (not f.ok, f.mismatched, f.max_abs))
    bad = [f for f in figures if not f.ok]
    told = (
        f"{worst.problem} ({len(bad)} of {len(figures)} samples differ)" if bad and len(figures) > 1 else worst.problem
    )
    ulps = [f.max_ulp for f in figures if f.max_ulp is not None]
    own = {key: float(np.mean([f.own[key] for f in figures if key in f.own])) for key in worst.own}
    changes: dict[str, Any] = {"ok": not bad, "problem": told, "own": own, "max_ulp": max(ulps, default=None)}
    changes["histogram"] = _added([f.histogram for f in figures])
    changes |= {field: _worst([getattr(f, field) for f in figures], max) for field in _LARGEST}
    changes |= {field: _worst([getattr(f, field) for f in figures], min) for field in _SMALLEST}
    changes |= {field: sum(getattr(f, field) for f in figures) for field in _ADDED}
    changes |= {field: _mean(figures, field, lambda f: f.count) for field in ("mean_abs", "mean_rel", "mismatched")}
    changes |= {field: _mean(figures, field, lambda f: f.shape[0]) for field in ("top1", "top5")}
    return dataclasses.replace(worst, **changes)


def _worst(values: list[float], choose: Callable[[list[float]], float]) -> float:
    """NaN is the worst of all."""
    return math.nan if any(math.isnan(v) for v in values) else choose(values)


def _mean(figures: Sequence[Figures], field: str, weight: Callable[[Figures], int]) -> float | None:
    known = [(getattr(f, field), weight(f)) for f in figures if getattr(f, field) is not None]
    if not known:
        return None
    total = sum(w for _, w in known)
    return sum(v * w for v, w in known if w) / total if total else max(v for v, _ in known)


def _added(histograms: Sequence[Histogram]) -> Histogram:
    counts = [sum(column) for column in zip(*(h.counts for h in histograms), strict=True)]
    return Histogram(sum(h.exact for h in histograms), EDGES, tuple(counts))


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
