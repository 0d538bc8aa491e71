"""The accuracy guard: a model in lower precision beside its float original, on samples that were held out.

Errors are summed over all samples: one number that is nearly zero in one sample says nothing. What is not shown to be
within the limits fails, NaN too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torchport.benchmark.child import read_arrays, save_arrays
from torchport.engines.session import Session
from torchport.errors import OptionError, RandomModelError, did_you_mean
from torchport.numerics.error_metrics import top_places
from torchport.numerics.tolerance import chunks, flat_parts
from torchport.optimization.calibration import CalibrationData
from torchport.results import Record
from torchport.tensors import Array

Metric = Callable[[Mapping[str, Array], Mapping[str, Array]], float]
_KINDS = ("cosine", "sqnr", "top1", "metric")
_EXAMPLE = "give a part: --max-drop 1%, --max-drop cosine=0.001, --max-drop sqnr=25 (decibels), --max-drop top1=2%"


@dataclasses.dataclass(frozen=True)
class Limits(Record):
    """The limits of a model's loss of accuracy. None where there is no limit.

    Attributes:
        cosine: the smallest cosine of an output and its original.
        sqnr: the smallest ratio of signal to quantization noise, in decibels.
        top1: the smallest share of rows with the same largest number.
        same: the smallest share of equal numbers in an output of integers.
        metric: the largest drop of the user's metric.
    """

    cosine: float | None = None
    sqnr: float | None = None
    top1: float | None = None
    same: float | None = None
    metric: float | None = None

    @classmethod
    def read(cls, given: Any, *, has_metric: bool) -> Limits:
        """Read a number, a text such as ``1%``, or a mapping from kinds to such.

        One number d is a drop of the metric if there is one, else of the cosine; a cosine of 1 - d is an SQNR of
        10 log10(1 / 2d) where the noise is all that differs, so that a wrong scale fails too.

        Raises:
            OptionError: it cannot be meant.

        Example:
            >>> Limits.read("1%", has_metric=False)
            Limits(cosine=0.99, sqnr=16.98970004336019, top1=None, same=0.99, metric=None)
        """
        entries = given if isinstance(given, Mapping) else {"": given}
        named = {"metric" if has_metric and not kind else kind: value for kind, value in entries.items()}
        parts = {kind: _number(kind, value) for kind, value in named.items()}
        if not parts:
            raise OptionError("no limit is given", where="--max-drop", next_step=_EXAMPLE)
        if "metric" in parts and not has_metric:
            raise OptionError(
                "there is no metric that could drop", where="--max-drop metric=...", next_step="name one: --metric"
            )
        found: dict[str, float] = {}
        if "" in parts:
            drop = parts.pop("")
            found = {"cosine": 1 - drop, "sqnr": 10 * math.log10(1 / (2 * drop)), "same": 1 - drop}
        direct = {kind: value for kind, value in parts.items() if kind in ("sqnr", "metric")}
        return cls(**{**found, **{k: 1 - v for k, v in parts.items() if k not in direct}, **direct})

    def __str__(self) -> str:
        said = [
            f"cosine ≥ {self.cosine:.6g}" if self.cosine is not None else "",
            f"SQNR ≥ {self.sqnr:.3g} dB" if self.sqnr is not None else "",
            f"top-1 agreement ≥ {self.top1:.4g}" if self.top1 is not None else "",
            f"metric drops ≤ {self.metric:.4g}" if self.metric is not None else "",
        ]
        return ", ".join(filter(None, said))


def _number(kind: str, given: Any) -> float:
    if kind not in ("", *_KINDS):
        raise OptionError(
            f"there is no limit '{kind}'",
            where=f"--max-drop {kind}={given}",
            next_step=did_you_mean(kind, _KINDS, _EXAMPLE, most=1),
        )
    text = str(given).strip()
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    most = 1.0 if kind in ("", "cosine", "top1") else math.inf
    least_is_taken = kind != "" or value > 0
    if isinstance(given, bool) or not (0 <= value < most) or not least_is_taken:
        shown = f"--max-drop {kind}={given}" if kind else f"--max-drop {given}"
        raise OptionError(f"a drop of {given!r} cannot be meant", where=shown, next_step=_EXAMPLE)
    return value


@dataclasses.dataclass(frozen=True)
class OutputAccuracy(Record):
    """One output beside its original, over all samples that were held out.

    Attributes:
        cosine: None for an output of integers.
        sqnr: in decibels, infinite where nothing differs.
        top1: the share of rows with the same largest number; None if it has no rows of scores.
        same: the share of equal numbers.
        problem: what is beyond the limits; empty if nothing is.
    """

    name: str
    cosine: float | None
    sqnr: float | None
    top1: float | None
    same: float
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Accuracy(Record):
    """A model beside its float original.

    Attributes:
        samples: that were held out.
        metric_before: the user's metric of the float model, a mean over the samples.
        metric_after: of this one.
        problem: what is beyond the limits; empty if nothing is.
    """

    outputs: tuple[OutputAccuracy, ...]
    samples: int
    metric_before: float | None = None
    metric_after: float | None = None
    problem: str = ""

    json_properties = ("ok",)

    @property
    def ok(self) -> bool:
        """Check that it is within the limits."""
        return not self.problem

    @property
    def noise(self) -> float:
        """Return the noise as a part of the signal, of the worst output; infinite if it is not a number."""
        found = [_noise(o) for o in self.outputs]
        return max((n if not math.isnan(n) else math.inf for n in found), default=math.inf)

    @property
    def cosine(self) -> float | None:
        """Return the smallest cosine."""
        return min((o.cosine for o in self.outputs if o.cosine is not None), default=None)

    @property
    def sqnr(self) -> float | None:
        """Return the smallest SQNR."""
        return min((o.sqnr for o in self.outputs if o.sqnr is not None), default=None)

    @property
    def top1(self) -> float | None:
        """Return the smallest agreement of the largest numbers."""
        return min((o.top1 for o in self.outputs if o.top1 is not None), default=None)

    def __str__(self) -> str:
        parts = [f"cosine {self.cosine:.5f}"] if self.cosine is not None else []
        parts += [f"SQNR {self.sqnr:.1f} dB"] if self.sqnr is not None else []
        parts += [f"top-1 agreement {self.top1:.1%}"] if self.top1 is not None else []
        if not parts and self.outputs:
            parts = [f"{min(o.same for o in self.outputs):.1%} of the numbers equal"]
        if self.metric_after is not None:
            parts.append(f"metric {self.metric_after:.4g} (float {self.metric_before:.4g})")
        return ", ".join(parts)


def _noise(output: OutputAccuracy) -> float:
    return 10 ** (-output.sqnr / 10) if output.sqnr is not None else 1 - output.same


@dataclasses.dataclass
class OutputSums:
    """Sums over samples of one output and its original."""

    product: float = 0.0
    reference: float = 0.0
    candidate: float = 0.0
    error: float = 0.0
    equal: int = 0
    count: int = 0
    rows: int = 0
    top1: float = 0.0
    is_float: bool = False
    problem: str = ""

    def add(self, reference: Array, candidate: Array, sample: str) -> None:
        """Take the output of one sample, named for messages."""
        if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
            kinds = [f"{a.dtype.name}{list(a.shape)}" for a in (candidate, reference)]
            self.problem = self.problem or f"sample '{sample}': {kinds[0]} instead of {kinds[1]}"
            return
        self.count += reference.size
        self.is_float = _is_float(reference)
        if not self.is_float:
            self.equal += int(np.sum(reference == candidate))
            return
        flat_a, flat_b = flat_parts(reference), flat_parts(candidate)
        for a, b in zip(chunks(flat_a), chunks(flat_b), strict=True):
            self._add_numbers(a.astype(np.float64), b.astype(np.float64), sample)
        if "top1" in (found := top_places(reference, candidate)):
            self.rows += reference.shape[0]
            self.top1 += found["top1"] * reference.shape[0]

    def _add_numbers(self, a: Array, b: Array, sample: str) -> None:
        special = ~np.isfinite(a)
        if not np.array_equal(special, ~np.isfinite(b)) or not np.array_equal(a[special], b[special], equal_nan=True):
            self.problem = self.problem or f"sample '{sample}': NaN or infinity where the float model has none, or none"
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = a[finite], b[finite]
        self.equal += int(np.sum(a == b)) + int(special.sum())
        self.product += float(a @ b)
        self.reference += float(a @ a)
        self.candidate += float(b @ b)
        self.error += float((a - b) @ (a - b))

    def figures(self, name: str) -> OutputAccuracy:
        """Return the figures over all samples so far."""
        same = self.equal / self.count if self.count else 1.0
        if not self.is_float:
            return OutputAccuracy(name, None, None, None, same)
        norms = math.sqrt(self.reference) * math.sqrt(self.candidate)
        cosine = self.product / norms if norms else (1.0 if self.reference == self.candidate else 0.0)
        sqnr = (
            math.inf
            if not self.error
            else 10 * math.log10(self.reference / self.error)
            if self.reference
            else -math.inf
        )
        return OutputAccuracy(name, cosine, sqnr, self.top1 / self.rows if self.rows else None, same)


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def accuracy_of(sums: Mapping[str, OutputSums], limits: Limits, *, samples: int) -> Accuracy:
    """Return what sums over samples amount to, by output, and what is beyond the limits."""
    outputs = tuple(_judged(total.figures(name), total.problem, limits) for name, total in sums.items())
    wrong = next((f"output '{o.name}': {o.problem}" for o in outputs if o.problem), "")
    return Accuracy(outputs, samples, problem=wrong)


def _judged(found: OutputAccuracy, problem: str, limits: Limits) -> OutputAccuracy:
    pairs = [
        ("cosine", found.cosine, limits.cosine),
        ("SQNR", found.sqnr, limits.sqnr),
        ("top-1 agreement", found.top1, limits.top1),
        ("share of equal numbers", None if found.cosine is not None else found.same, limits.same),
    ]
    for name, value, limit in pairs:
        if value is not None and limit is not None and not value >= limit:
            problem = problem or f"{name} {value:.5g}, the limit is {limit:.5g}"
    return dataclasses.replace(found, problem=problem)


class HeldOut:
    """Holds models against the float one, whose outputs are kept on disk.

    Args:
        data: the samples.
        reference: the float model.
        limits: how much worse a model may get.
        metric: the user's own, of outputs and of the whole sample, larger is better.

    Raises:
        RandomModelError: the float model gives other outputs for the same inputs.
    """

    def __init__(self, data: CalibrationData, reference: Session, limits: Limits, metric: Metric | None = None) -> None:
        self._data, self._limits, self._metric = data, limits, metric
        self._folder = data.folder
        self._names = tuple(o.name for o in reference.outputs)
        self._for_ranking = data.calibration[:2]
        scores = []
        for name in dict.fromkeys((*data.held_out, *self._for_ranking)):
            outputs = reference.run(data.inputs(name))
            save_arrays(self._folder, _outputs(name), outputs)
            if name == data.held_out[0]:
                _check_repeats(outputs, reference.run(data.inputs(name)))
            if metric is not None and name in data.held_out:
                scores.append(self._score(outputs, name))
        self._metric_before = float(np.mean(scores)) if metric is not None else None

    def measure(self, session: Session) -> Accuracy:
        """Hold a model against the float one on all samples that were held out."""
        sums, scores = self._sums(session, self._data.held_out)
        found = accuracy_of(sums, self._limits, samples=len(self._data.held_out))
        after = float(np.mean(scores)) if self._metric is not None else None
        problem = found.problem or self._metric_problem(after)
        return dataclasses.replace(found, metric_before=self._metric_before, metric_after=after, problem=problem)

    def noise(self, session: Session) -> float:
        """Return the noise of a model as a part of the signal, on a few samples of the calibration."""
        sums, _ = self._sums(session, self._for_ranking)
        outputs = [total.figures(name) for name, total in sums.items()]
        broken = any(total.problem for total in sums.values())
        return math.inf if broken else Accuracy(tuple(outputs), len(self._for_ranking)).noise

    def _sums(self, session: Session, samples: Sequence[str]) -> tuple[dict[str, OutputSums], list[float]]:
        sums = {name: OutputSums() for name in self._names}
        scores = []
        for sample in samples:
            outputs = session.run(self._data.inputs(sample))
            reference = read_arrays(self._folder, _outputs(sample))
            for name, total in sums.items():
                total.add(np.asarray(reference[name]), np.asarray(outputs[name]), sample)
            if self._metric is not None and samples is self._data.held_out:
                scores.append(self._score(outputs, sample))
        return sums, scores

    def _score(self, outputs: Mapping[str, Array], sample: str) -> float:
        assert self._metric is not None
        try:
            return float(self._metric(outputs, self._data.whole(sample)))
        except Exception as error:
            raise OptionError(
                f"the metric failed: {type(error).__name__}: {error}",
                next_step="it is given the outputs and the sample, both arrays by name, and has to give one number",
            ) from error

    def _metric_problem(self, after: float | None) -> str:
        if after is None or self._limits.metric is None or self._metric_before is None:
            return ""
        drop = self._metric_before - after
        if drop <= self._limits.metric:  # a NaN is not
            return ""
        return f"the metric drops from {self._metric_before:.5g} to {after:.5g}, the limit is {self._limits.metric:.5g}"


def _outputs(sample: str) -> str:
    return f"{sample}.outputs"


def _check_repeats(first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
    for name, array in first.items():
        if not np.array_equal(array, second[name], equal_nan=_is_float(array)):
            raise RandomModelError(
                f"the model gives other numbers for output '{name}' each time: nothing shows what quantization changes",
                next_step="take the random operators out, or give their numbers as inputs",
            )
