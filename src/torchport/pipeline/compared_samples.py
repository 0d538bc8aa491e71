"""What came of each sample of a comparison."""

from __future__ import annotations

import math

from torchport.comparing.figures import Figures, merged
from torchport.comparing.samples import Sample


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
        return tuple(merged(list(one)) for one in zip(*self._figures, strict=True))


def _badness(figures: Figures) -> tuple[bool, float, float]:
    """Wrong before right, then how many numbers are wrong, then how far off they are; as in `merged`."""
    return not figures.ok, figures.mismatched, math.inf if math.isnan(figures.max_abs) else figures.max_abs
