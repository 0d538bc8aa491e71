"""The search: which choice is measured next, within a budget, and which are left out and why.

    1. the model as given in every engine
    2. variants, cheap ones first, with each engine's defaults
    3. options of the engines on the best of these, one by one, then those that helped together
    4. a final race of the best with the model as given, until their difference is beyond the noise

A candidate that is far behind is dropped after its first turns; one that is predicted to lose is not measured.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchport.engines.protocol import Trial
from torchport.optimization.search_space import AS_GIVEN, Choice, Variant, combinations, trials
from torchport.optimization.tuning_turns import Measured

_HOPELESS = 4.0  # times the best: an engine so far behind gets no lossless variants
_CLOSE = 1.25  # times the best: variants whose options are tried
_GAIN = 0.98  # of the time: options that help
_RACE = 0.3  # of the budget, for the final race
_LONGEST = 0.4  # of what is left, for one step


@dataclasses.dataclass
class Budget:
    """Seconds, counted from the start."""

    seconds: float
    start: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - (time.monotonic() - self.start)

    @property
    def searching(self) -> bool:
        """Check that there is time for more than the final race."""
        return self.left > _RACE * self.seconds

    @property
    def step(self) -> float:
        """Return the seconds that one step may take."""
        return max(1.0, _LONGEST * self.left)


class Search:
    """Decides what is measured.

    Args:
        engines: that take part, the default engine first.
        variants: in the order in which they are made.
        cpus: that the process may use.
        lossy: a tolerance allows less precision.
        budget: of all of it.
        make: returns a variant's file, or an empty text and the reason.
        measure: measures a choice; `best` is the score to beat.
        score: of what was measured: less is better.
        note: called with each choice and what was found.
        tries_options: options of engines can improve the score.

    Attributes:
        found: what was measured of each choice.
    """

    def __init__(
        self,
        engines: Sequence[str],
        variants: Sequence[Variant],
        *,
        cpus: int,
        lossy: bool,
        budget: Budget,
        make: Callable[[Variant, float], tuple[str, str]],
        measure: Callable[[Choice, str, float, float], Measured],
        score: Callable[[Choice, Measured], float],
        note: Callable[[Choice, Measured], None],
        tries_options: bool = True,
    ) -> None:
        self._engines, self._variants, self._cpus, self._lossy = engines, variants, cpus, lossy
        self._budget, self._make, self._measure, self._score = budget, make, measure, score
        self._note, self._tries_options = note, tries_options
        self.found: dict[Choice, Measured] = {}

    def take(self, choice: Choice, found: Measured) -> None:
        """Take what was measured of a choice."""
        self.found[choice] = found
        self._note(choice, found)

    def ranked(self) -> list[Choice]:
        """Return the choices that are in the race, the best first."""
        running = [(self._score(c, m), n, c) for n, (c, m) in enumerate(self.found.items()) if not m.dropped]
        return [choice for _, _, choice in sorted(running, key=lambda item: item[:2])]

    def score(self, choice: Choice) -> float:
        """Return the score of a choice that was measured."""
        return self._score(choice, self.found[choice])

    def run(self) -> None:
        """Measure until nothing promising is left, or the time for the search is over."""
        for choice in self._plan():
            if not self._budget.searching:
                self._drop(choice, "not tried: the budget was used up")
                continue
            if choice not in self.found:
                self._try(choice)

    def _plan(self) -> Iterator[Choice]:
        for engine in self._engines[1:]:
            yield Choice(self._variants[0], engine)
        for variant in self._variants[1:]:
            for engine in self._engines:
                if variant.runs_in(engine) and not self._hopeless(variant, engine):
                    yield Choice(variant, engine)
        if self._tries_options:
            yield from self._options()

    def _hopeless(self, variant: Variant, engine: str) -> bool:
        """Notice an engine that is far behind: what keeps the numbers as they are does not make up for it."""
        given = self.found.get(Choice(self._variants[0], engine))
        if variant.lossy or given is None or given.ratio is None:
            return False
        best = self.ranked()[0]
        behind = self.score(Choice(self._variants[0], engine)) / self.score(best) if not given.dropped else 0.0
        if behind > _HOPELESS:
            self._drop(Choice(variant, engine), f"not tried: as given the model is {behind:.1f} times the best there")
            return True
        return False

    def _options(self) -> Iterator[Choice]:
        """Give options on the best variant of each engine: each alone, then those together that helped."""
        for base in self._close():
            gains: dict[str, tuple[Trial, float]] = {}
            for trial in trials(base.engine, self._cpus, lossy=self._lossy):
                choice = dataclasses.replace(base, trial=trial)
                yield choice
                gain = self._gain(choice, base)
                if gain < _GAIN:
                    gains[choice.label] = (trial, gain)
            for trial, predicted in combinations(gains):
                choice = dataclasses.replace(base, trial=trial)
                if predicted * self.score(base) < _GAIN * self.score(self.ranked()[0]):
                    yield choice

    def _close(self) -> list[Choice]:
        """Return the best variant of each engine that is close to the best of all."""
        best: dict[str, Choice] = {}
        for choice in self.ranked():
            best.setdefault(choice.engine, choice)
        limit = _CLOSE * min((self.score(c) for c in best.values()), default=0.0)
        return [choice for choice in best.values() if self.score(choice) <= limit]

    def _gain(self, choice: Choice, base: Choice) -> float:
        measured = self.found.get(choice)
        if measured is None or measured.dropped:
            return 1.0
        return self.score(choice) / self.score(base)

    def _try(self, choice: Choice) -> None:
        path, reason = self._make(choice.variant, self._budget.step)
        if not path:
            self._drop(choice, f"could not be made: {reason}")
            return
        ranked = self.ranked()
        best = min((self.found[c].ratio or 1.0 for c in ranked), default=1.0)
        self.take(choice, self._measure(choice, path, best, self._budget.step))

    def _drop(self, choice: Choice, reason: str) -> None:
        if choice not in self.found:
            self.take(choice, Measured(dropped=reason))


def incumbent(engine: str) -> Choice:
    """Return the model as given with the engine's defaults."""
    return Choice(Variant(AS_GIVEN), engine)


def frontier(figures: Mapping[Choice, Sequence[float | None]]) -> list[Choice]:
    """Return the choices that no other one beats in every figure; less is better, and None, not known, is the worst."""

    def beats(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
        pairs = [tuple(math.inf if x is None else x for x in pair) for pair in zip(a, b, strict=True)]
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    return [c for c, own in figures.items() if not any(beats(other, own) for other in figures.values())]
