"""The quick measurement of a search: one candidate in turns with the model as given, each in a process of its own.

The figure is the ratio of their times, so that the load of the machine at that moment hits both. A candidate that is
far behind after its first turns is not measured further.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torchport.benchmark.children import Candidate, Worker
from torchport.benchmark.command_process import CommandError
from torchport.benchmark.rounds import Point
from torchport.engines.protocol import Trial
from torchport.errors import EngineError, RandomModelError
from torchport.numerics.tolerance import Limits as ProofLimits
from torchport.optimization.accuracy import Limits
from torchport.optimization.agreement import Agreement, TolerantReference
from torchport.results import Record
from torchport.tensors import Array

_ROUNDS = 7
_ENOUGH = 3  # turns after which a slow candidate is dropped
_TURN = 0.06  # seconds of a turn at least
_LEAST_RUNS = 2  # of a turn
_WARM_UP = 0.5  # seconds at most
_MONTH = 30 * 86400.0  # seconds: the incumbent's process lasts as long as the search
_FAR = 1.3  # times the best candidate's time


@dataclasses.dataclass(frozen=True)
class Measured(Record):
    """What was found out of one candidate.

    Attributes:
        ratio: its time as a multiple of the time of the model as given; None if it was not measured.
        seconds: of a run, or the inverse of the throughput where several clients call it.
        memory: bytes that the model took in its process.
        noise: the error of the worst output as a part of its signal, in power, over all samples; 0 if it is equal.
        max_abs: the largest absolute error.
        version: of the engine.
        dropped: why it is out of the race; empty if it is in it.
    """

    ratio: float | None = None
    seconds: float | None = None
    memory: int | None = None
    noise: float | None = None
    max_abs: float | None = None
    version: str = ""
    dropped: str = ""


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What all candidates of a search are measured at.

    Attributes:
        points: inputs to measure the time with.
        samples: inputs to compare the outputs on, by name.
        names: of the outputs.
        limits: the tolerances of a proof.
        allowed: how far outputs may be off; None for the limits of a proof.
        clients: threads that call a session.
        memory: the bytes of address space that a process may take; None for no limit.
    """

    points: Sequence[Point]
    samples: Sequence[tuple[str, Mapping[str, Array]]]
    names: tuple[str, ...]
    limits: ProofLimits
    allowed: Limits | None = None
    clients: int = 1
    memory: int | None = None


class Turns:
    """Measures candidates against the model as given, whose process stays open.

    Args:
        incumbent: the model as given in the default engine.
        conditions: for all candidates.

    Attributes:
        outputs: the incumbent's, by sample.

    Raises:
        EngineError: the model as given does not run.
        RandomModelError: its outputs differ from run to run.
    """

    def __init__(self, incumbent: Candidate, conditions: Conditions) -> None:
        self._conditions = conditions
        self._candidate = incumbent
        self._stack = contextlib.ExitStack()
        self.outputs: dict[str, tuple[Array, ...]] = {}
        self._last: dict[str, float] = {}

    def __enter__(self) -> Self:
        try:
            self._base = self._stack.enter_context(Worker(self._candidate, limit=_MONTH))
            opened = _opened(self._base)
            for name, feeds in self._conditions.samples:
                first, second = (self._outputs(self._base, name, feeds) for _ in range(2))
                self._check_repeatable(first, second)
                self.outputs[name] = second
            memory = self._warm(self._base)
        except CommandError as error:
            self._stack.close()
            raise EngineError(
                f"the model as given does not run in {self._candidate.engine}: {error.facts['reason']}",
                node=error.facts.get("node") or None,
                next_step="`torchport engines` says which engines run it",
            ) from error
        except BaseException:
            self._stack.close()
            raise
        self.incumbent = Measured(
            1.0, self._times(self._base), max(memory, opened["memory"] or 0), 0.0, 0.0, opened["version"]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, candidate: Candidate, *, best: float, seconds: float) -> Measured:
        """Run a candidate: compare its outputs, then its time.

        Args:
            candidate: what to run.
            best: the ratio of the best candidate so far: one far behind it is dropped early.
            seconds: that all of it may take.
        """
        try:
            with Worker(candidate, limit=seconds, memory=self._conditions.memory) as worker:
                opened = _opened(worker)
                found = self._compared(worker, Measured(version=opened["version"]))
                if found.dropped:
                    return found
                memory = max(self._warm(worker), opened["memory"] or 0)
                return self._timed(worker, dataclasses.replace(found, memory=memory), best)
        except CommandError as error:
            return Measured(dropped=_reason(error.facts))

    # Outputs

    def _compared(self, worker: Worker, found: Measured) -> Measured:
        agreement = Agreement(self._conditions.names)
        largest, wrong = 0.0, ""
        for name, feeds in self._conditions.samples:
            given = self._outputs(worker, name, feeds)
            agreement.add(name, self.outputs[name], given)
            judged = self._reference(self.outputs[name]).judge(given)
            largest = max(largest, judged.max_abs or 0.0)
            wrong = wrong or judged.reason
        allowed = self._conditions.allowed
        accuracy = agreement.accuracy(allowed or Limits())
        wrong = accuracy.problem if allowed is not None else wrong
        dropped = f"less accurate than allowed: {wrong}" if wrong else ""
        return dataclasses.replace(found, noise=accuracy.noise, max_abs=largest, dropped=dropped)

    def _reference(self, outputs: tuple[Array, ...]) -> TolerantReference:
        conditions = self._conditions
        return TolerantReference("the model as given", outputs, conditions.names, conditions.limits)

    def _check_repeatable(self, first: Sequence[Array], second: Sequence[Array]) -> None:
        judged = self._reference(tuple(first)).judge(second)
        if judged.status == "wrong":
            raise RandomModelError(
                f"two runs of the model as given on one input differ: {judged.reason}",
                next_step="a model that draws random numbers cannot be tuned: nothing tells if it stayed right",
            )

    def _outputs(self, worker: Worker, name: str, feeds: Mapping[str, Array]) -> tuple[Array, ...]:
        worker.run(name, feeds)
        return worker.outputs()[0]

    # Times

    def _warm(self, worker: Worker) -> int:
        """Run at every point until it gets no faster. Returns the memory that the model took."""
        memory = 0
        for point in self._conditions.points:
            memory = max(memory, worker.run(point.name, point.feeds)["memory"] or 0)
            self._last[point.name] = max(self._last.get(point.name, 0.0), worker.warm_up(point.name, _WARM_UP))
        return memory

    def _timed(self, worker: Worker, found: Measured, best: float) -> Measured:
        ratios: list[float] = []
        seconds: list[float] = []
        for turn in range(_ROUNDS):
            order = (worker, self._base) if turn % 2 else (self._base, worker)
            times = {w.pid: self._times(w) for w in order}
            ratios.append(times[worker.pid] / times[self._base.pid])
            seconds.append(times[worker.pid])
            if turn + 1 >= _ENOUGH and min(ratios) > _FAR * best:
                break
        ratio = statistics.median(ratios)
        return dataclasses.replace(found, ratio=ratio, seconds=statistics.median(seconds))

    def _times(self, worker: Worker) -> float:
        """Return the time of a run, as the geometric mean over the points."""
        conditions = self._conditions
        logs = []
        for point in conditions.points:
            turn = max(_TURN, _LEAST_RUNS * self._last[point.name])
            measured = worker.measure(point.name, turn, least=_LEAST_RUNS, clients=conditions.clients)
            times = measured["times"]
            each = statistics.median(times) if conditions.clients == 1 else measured["wall"] / len(times)
            logs.append(math.log(each))
        return math.exp(statistics.fmean(logs))


def _opened(worker: Worker) -> dict[str, Any]:
    worker.start()
    worker.started()
    return worker.open()


def _reason(facts: Mapping[str, Any]) -> str:
    node = facts.get("node", "")
    return f"{facts['reason']} (node '{node}')" if node else str(facts["reason"])


def candidate_for(label: str, path: str, engine: str, trial: Trial, common: Mapping[str, Any]) -> Candidate:
    """Return the candidate of a model file, an engine and its options."""
    return Candidate(label, "engine", path, engine, threads=trial.threads, settings=dict(trial.settings), **common)
