"""What came of each sample of a comparison."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchport.errors import EngineError, ForwardError, InputError
from torchport.inputs.samples import Sample
from torchport.numerics.error_metrics import Figures, merged
from torchport.results import Finding
from torchport.tensors import Array

ARRAYS = (np.ndarray, np.generic)


class Seen:
    """The figures of every sample, and the sample that came out worst."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._figures: list[tuple[Figures, ...]] = []
        self._badness: tuple[bool, float, float] | None = None
        self.samples: list[Sample] = []

    @property
    def count(self) -> int:
        return len(self._figures)

    def add(self, sample: Sample, figures: tuple[Figures, ...]) -> None:
        badness = max((_badness(f) for f in figures), default=(False, 0.0, 0.0))
        if self._badness is None or badness > self._badness:
            self._badness, self.worst, self.worst_figures = badness, sample, figures
        self._figures.append(figures)
        if self._keep:
            self.samples.append(sample)

    def merged(self) -> tuple[Figures, ...]:
        """Each output over the samples that have it."""
        by_name: dict[str, list[Figures]] = {}
        for one in (f for figures in self._figures for f in figures):
            by_name.setdefault(one.name, []).append(one)
        return tuple(merged(figures) for figures in by_name.values())


def _badness(figures: Figures) -> tuple[bool, float, float]:
    """Wrong before right, then how many numbers are wrong, then how far off they are; as in `merged`."""
    return not figures.ok, figures.mismatched, math.inf if math.isnan(figures.max_abs) else figures.max_abs


@contextlib.contextmanager
def on_sample(sample: Sample) -> Iterator[None]:
    """What goes wrong goes wrong on this sample."""
    try:
        yield
    except (InputError, ForwardError, EngineError) as error:
        where = error.where or ""
        told = where if sample.name in where else ", ".join(filter(None, [sample.name, where]))
        raise type(error)(error.what, where=told, next_step=error.next_step) from error


def tensors_of(name: str, output: Any) -> list[Array]:
    """What an output holds: one tensor, a sequence of them, or nothing where it is optional."""
    items = output if isinstance(output, (list, tuple)) else [] if output is None else [output]
    for item in items:
        if not isinstance(item, ARRAYS):
            raise InputError(
                f"output '{name}' holds a {type(item).__name__}: only tensors and sequences of them are compared",
                next_step="leave it out: --map a=b names the outputs to compare",
            )
    return list(items)


def telling_nothing(answers: Mapping[str, Any], outputs: Sequence[Figures]) -> list[Finding]:
    """Outputs whose agreement says nothing."""
    floats = {n: a for n, a in answers.items() if isinstance(a, ARRAYS) and "float" in a.dtype.name and a.size}
    void = [n for n, a in floats.items() if np.isnan(a.astype(np.float64)).all()]
    empty = [f.name for f in outputs if f.ok and not f.count]
    return [
        *(Finding(f"output '{n}' of the reference is NaN throughout, which tells nothing") for n in void),
        *(Finding(f"output '{n}' is empty: nothing was compared in it") for n in empty),
    ]
