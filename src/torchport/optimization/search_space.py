"""What `tune` chooses from: variants of the model, engines, and the options of engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from torchport.engines.protocol import Trial
from torchport.engines.registry import DEFAULT, find_engine
from torchport.optimization.result import Target
from torchport.optimization.scheme import DYNAMIC, STATIC

AS_GIVEN = "as given"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model file made from the model as given.

    Attributes:
        name: in the table.
        engine: the engine it is for; empty for every engine.
        verb: what makes it; empty for the model as given.
        options: of the verb.
        lossy: it computes with less precision.
        cost: the order in which variants are made: cheap ones first.
    """

    name: str
    engine: str = ""
    verb: Literal["", "optimize", "quantize"] = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lossy: bool = False
    cost: int = 0

    def runs_in(self, engine: str) -> bool:
        """Check that the variant is for an engine."""
        return self.engine in ("", engine)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to run the model: a variant, an engine and its options."""

    variant: Variant
    engine: str
    trial: Trial = dataclasses.field(default_factory=Trial)

    def __hash__(self) -> int:
        return hash(self.label)  # options are dicts

    @property
    def lossy(self) -> bool:
        """Check that the numbers are computed with less precision than in the model as given."""
        return self.variant.lossy or self.trial.lossy

    @property
    def label(self) -> str:
        """``openvino, int8, threads=1``"""
        threads = [f"threads={self.trial.threads}"] if self.trial.threads is not None else []
        settings = [f"{name}={_shown(value)}" for name, value in self.trial.settings.items()]
        return ", ".join([self.engine, self.variant.name, *threads, *settings])


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def variants(engines: Sequence[str], *, lossy: bool) -> list[Variant]:
    """Return the variants worth making, in the order of what they cost to make.

    Args:
        engines: that take part.
        lossy: a tolerance allows less precision.
    """
    found = [Variant(AS_GIVEN)]
    targets = [engine for engine in engines if engine in get_args(Target)]
    found += [Variant("optimized", engine, "optimize", {"target": engine}, cost=1) for engine in targets]
    if lossy:
        schemes = [("dynamic int8", DYNAMIC, DEFAULT, 2), *(("int8", STATIC, engine, 3) for engine in targets)]
        found += [
            Variant(name, engine, "quantize", {"scheme": scheme, "engine": engine}, lossy=True, cost=cost)
            for name, scheme, engine, cost in schemes
        ]
    return sorted(found, key=lambda variant: variant.cost)


def trials(engine: str, cpus: int, *, lossy: bool) -> list[Trial]:
    """Return the options of an engine that are worth measuring beside its defaults."""
    return [trial for trial in find_engine(engine).trials(cpus) if lossy or not trial.lossy]


def combined(first: Trial, second: Trial) -> Trial | None:
    """Return the options of two trials together; None where both set the same."""
    if first.threads is not None and second.threads is not None:
        return None
    if set(first.settings) & set(second.settings):
        return None
    threads = first.threads if first.threads is not None else second.threads
    return Trial(threads, {**first.settings, **second.settings}, first.lossy or second.lossy)


def combinations(gains: Mapping[str, tuple[Trial, float]]) -> Iterator[tuple[Trial, float]]:
    """Give pairs of options that each made the model faster, the most promising first, with the predicted factor.

    Options that work on different things multiply: threads that take 0.9 of the time and a graph level that takes 0.8
    of it are predicted to take 0.72 of it together.

    Args:
        gains: by name, options and the factor of the time they took alone.
    """
    items = sorted(gains.values(), key=lambda item: item[1])
    pairs = [
        (together, a * b)
        for n, (first, a) in enumerate(items)
        for second, b in items[n + 1 :]
        if (together := combined(first, second)) is not None
    ]
    yield from sorted(pairs, key=lambda pair: pair[1])
