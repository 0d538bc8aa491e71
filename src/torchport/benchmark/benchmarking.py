"""tp.bench"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.benchmark.bench_call import (
    Asked,
    BenchModel,
    Source,
    check_call,
    check_interfaces,
    labelled,
    numbers,
    points_of,
)
from torchport.benchmark.bench_table import BenchRow, BenchTable, SpeedVerdict
from torchport.benchmark.children import Candidate, run_candidate
from torchport.benchmark.preparation import Common, Failure
from torchport.benchmark.reference import Reference, reference_of, torch_reference
from torchport.benchmark.rounds import Plan, Point, Rounds, Series
from torchport.benchmark.torch_candidate import MODES
from torchport.conversion.options import Progress
from torchport.engines.registry import DEFAULT, find_engine
from torchport.numerics.tolerance import limits_for
from torchport.tensors import Array


def bench(
    models: Source | Sequence[Source],
    against: Any = None,
    *,
    engines: Sequence[str] | None = None,
    at: Mapping[str, int | Sequence[int]] | None = None,
    threads: int | Sequence[int] | None = None,
    clients: int | Sequence[int] = 1,
    inputs: Any = None,
    options: Mapping[str, Any] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    seconds: float = 2.0,
    processes: int = 5,
    limit: float = 300.0,
    memory: int | None = None,
    seed: int = 0,
    trust: bool = False,
    progress: Progress | None = None,
) -> BenchTable:
    """Measure models and engines beside each other, and say which differences are beyond the noise.

    Candidates are all models in all engines with all numbers of threads. Each runs in processes of its own, and they
    take turns. Outputs are compared while they are measured: a fast wrong engine is called wrong.

    Args:
        models: an ONNX file or a model in memory, or several; all take the same inputs.
        against: the PyTorch model whose outputs are right, or its source, ``"model.py:Net"``. With a source, PyTorch is
            a candidate too, eager and compiled. Without, ONNX Runtime's outputs of the first model are taken.
        engines: what runs the models; ONNX Runtime if None. With a source in `against`, ``"torch"`` and
            ``"torch.compile"`` may be named.
        at: sizes of dynamic dimensions, ``{"batch": [1, 8]}``; every combination is a point.
        threads: for each engine to compute with; several numbers make several candidates.
        clients: numbers of threads that call one session at the same time.
        inputs: a tuple in order, or a mapping by name. Made up from the first model's shapes if None.
        options: what only some engines take; each goes to the engines that have it.
        libraries: operator libraries that the models need, by path, or Python files that define operators.
        seconds: to measure each candidate for at each point.
        processes: for each candidate, one after the other; up to twice as many where the noise is large.
        limit: the seconds that each process may take in all.
        memory: the bytes of address space that each process may take; None for no limit.
        seed: for weights that the PyTorch model draws, and the order of turns. Made-up inputs are the same each time.
        trust: open a PyTorch file that runs code when it is loaded.
        progress: called with one line at each step.

    Returns:
        The table. It is as long as it got where Ctrl-C ended it.

    Example:
        >>> print(tp.bench(["model.onnx", "smaller.onnx"], at={"batch": [1, 8]}, threads=1))
    """
    sources = [models] if isinstance(models, (str, os.PathLike, ir.Model)) else list(models)
    plan = Plan(seconds, processes, numbers(clients), limit, memory, seed)
    check_call(sources, plan, engines, numbers(threads), against)
    common = Common.read(libraries, seed=seed, trust=trust)
    with contextlib.ExitStack() as stack:
        opened = [BenchModel.open(source, stack) for source in sources]
        check_interfaces(opened)
        points = points_of(opened, inputs, at or {}, common)
        asked = Asked(engines, numbers(threads), against, options or {}, common)
        return _Bench(labelled(opened), points, plan, asked, progress or (lambda text: None)).table()


# Candidates, and what is said of them


class _Bench:
    def __init__(
        self, models: Sequence[BenchModel], points: Sequence[Point], plan: Plan, asked: Asked, say: Progress
    ) -> None:
        self._models, self._points, self._plan, self._asked, self._say = models, points, plan, asked, say
        self._limits = limits_for([m.graph for m in models], None)
        self._names = tuple(models[0].outputs)
        settings = asked.settings()
        self._model_of: dict[int, BenchModel] = {}
        self._candidates = [self._candidate(*parts, settings) for parts in self._combinations()]

    def _combinations(self) -> Iterator[tuple[BenchModel, str, int | None]]:
        for engine in self._asked.names:
            takes = engine in MODES or find_engine(engine).takes_threads
            for model in self._models if engine not in MODES else self._models[:1]:
                for threads in self._asked.threads if takes and self._asked.threads else (None,):
                    yield model, engine, threads

    def _candidate(
        self, model: BenchModel, engine: str, threads: int | None, settings: Mapping[str, Mapping[str, Any]]
    ) -> Candidate:
        parts = [
            model.label if len(self._models) > 1 and engine not in MODES else "",
            engine if len(self._asked.names) > 1 else "",
            f"threads={threads}" if threads is not None and len(self._asked.threads) > 1 else "",
        ]
        label = " ".join(filter(None, parts)) or model.label
        common = {"threads": threads, **self._asked.common.fields}
        if engine in MODES:
            made = Candidate(label, "torch", self._asked.against, engine, mode=engine, **common)
        else:
            made = Candidate(label, "engine", model.path, engine, settings=settings[engine], **common)
        self._model_of[id(made)] = model
        return made

    def table(self) -> BenchTable:
        teller = next((c for c in self._candidates if self._is_default(c)), None)
        rounds = Rounds(
            self._candidates,
            self._points,
            self._plan,
            teller=teller,
            ordered=self._ordered,
            reference_of=lambda c, outputs: self._reference(c.label, outputs),
            pairs=list(self._pairs()),
            say=self._say,
        )
        try:
            self._take_references(teller)
        except KeyboardInterrupt:
            rounds.interrupted = True
        else:
            rounds.run()
        return BenchTable(
            tuple(model.shown for model in self._models),
            next((p.reference.name for p in self._points if p.reference), ""),
            tuple({n: a.shape for n, a in point.feeds.items()} for point in self._points),
            tuple(self._row(rounds, c, point, n) for point, n in self._places() for c in self._candidates),
            tuple(self._verdicts(rounds)),
            rounds.watch.findings([c.threads for c in self._candidates]),
            rounds.interrupted,
        )

    def _places(self) -> Iterator[tuple[Point, int]]:
        yield from itertools.product(self._points, self._plan.clients)

    def _is_default(self, candidate: Candidate) -> bool:
        return (
            candidate.engine == DEFAULT and self._model_of[id(candidate)] is self._models[0] and not candidate.settings
        )

    def _take_references(self, teller: Candidate | None) -> None:
        """Ask PyTorch for the outputs that are right, or ONNX Runtime if it is no candidate."""
        common = self._asked.common
        for point in self._points:
            if self._asked.against is not None:
                self._say("asking PyTorch")
                options: dict[str, Any] = {"seed": common.seed, "trust": common.trust}
                against = self._asked.against
                point.reference = torch_reference(against, point.feeds, self._models[0].graph, self._limits, **options)
            elif teller is None:
                self._say(f"asking {DEFAULT}")
                asked = Candidate(DEFAULT, "engine", self._models[0].path, DEFAULT, **common.fields)
                limits: dict[str, Any] = {"limit": self._plan.limit, "memory": self._plan.memory}
                outputs = run_candidate(asked, point.feeds, seconds=0, **limits).outputs
                if outputs is not None:  # otherwise the first candidate that runs is the reference
                    point.reference = self._reference(DEFAULT, outputs)

    def _reference(self, name: str, outputs: Sequence[Array]) -> Reference:
        return reference_of(name, outputs, self._models[0].graph, self._limits)

    def _ordered(self, candidate: Candidate, outputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return outputs in the order of the first model's, if they have the same names."""
        names = self._model_of[id(candidate)].outputs
        if candidate.kind == "torch" or set(names) != set(self._names) or len(outputs) != len(names):
            return tuple(outputs)
        return tuple(dict(zip(names, outputs, strict=True))[name] for name in self._names)

    # Pairs

    def _pairs(self) -> Iterator[tuple[Candidate, Candidate]]:
        """Give the pairs of candidates that differ in one thing: the model, the engine or the threads."""
        for first, second in itertools.combinations(self._candidates, 2):
            same = [
                self._model_of[id(first)] is self._model_of[id(second)],
                first.engine == second.engine,
                first.threads == second.threads,
            ]
            if sum(same) == 2:
                yield first, second

    def _verdicts(self, rounds: Rounds) -> Iterator[SpeedVerdict]:
        for point, clients in self._places():
            for first, second in self._pairs():
                found = rounds.ratio(first, second, point, clients)
                if found is not None and not any(rounds.series(c, point, clients).failure for c in (first, second)):
                    figures = (found.value, found.low, found.high, found.differs)
                    yield SpeedVerdict(first.label, second.label, point.at, clients, *figures)

    # Rows

    def _row(self, rounds: Rounds, candidate: Candidate, point: Point, clients: int) -> BenchRow:
        series, opened = rounds.series(candidate, point, clients), rounds.opened[id(candidate)]
        row = BenchRow(
            candidate.label,
            candidate.model if candidate.kind == "torch" else self._model_of[id(candidate)].shown,
            candidate.engine,
            candidate.threads,
            point.at,
            clients,
            "not measured",
            version=opened[0]["version"] if opened else "",
            findings=tuple(opened[0]["findings"]) if opened else (),
        )
        if series.failure:
            return dataclasses.replace(row, **Failure.of(series.failure, self._model_of[id(candidate)].graph).fields)
        if series.judgment is None or not series.times:
            return row
        row = dataclasses.replace(row, **series.judgment.fields, **_figures(series))
        load = statistics.median(facts["load_seconds"] for facts in opened)
        row = dataclasses.replace(row, load_seconds=load)
        if row.status == "wrong":
            return dataclasses.replace(row, next_step="`torchport compare --layers` finds the first node that differs")
        own = point.reference is not None and point.reference.name == candidate.label and self._asked.against is None
        return dataclasses.replace(row, status="runs") if own and row.status == "right" else row


def _figures(series: Series) -> dict[str, Any]:
    """Return the figures of a row."""
    times = np.asarray(series.times)
    quarter, median, three_quarters, p90, p99 = (float(q) for q in np.quantile(times, [0.25, 0.5, 0.75, 0.9, 0.99]))
    return {
        "runs": len(times),
        "processes": len(series.turns),
        "median_seconds": median,
        "p90_seconds": p90,
        "p99_seconds": p99,
        "spread": (three_quarters - quarter) / median,
        "throughput": len(times) / series.wall,
        "first_seconds": statistics.median(series.first),
        "memory": series.memory,
    }
