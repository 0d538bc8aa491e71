"""Candidates take turns: fresh processes, in each some rounds, in each round one turn of every candidate.

    processes 1   round 1: b a c   round 2: c a b   ...
    processes 2   round 1: a c b   ...

While one candidate has its turn, the processes of the others are stopped. The order is drawn anew in every round, so
that what else the machine does hits all alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchport.benchmark.children import Candidate, Worker
from torchport.benchmark.command_process import CommandError
from torchport.benchmark.interference import Watch
from torchport.benchmark.ratios import Ratio, ratio_of
from torchport.benchmark.reference import Judgment, Reference
from torchport.tensors import Array

_MOST_ROUNDS = 30  # with one process of each candidate: many short turns, since the load of a machine changes
_LEAST_RUNS = 3  # of a turn
_WARM_UP = 1.0  # seconds at most
_PRECISE = 0.02  # an interval of ± 2% needs no more processes
_MORE = 2  # times as many processes at most, where the interval is wider


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long to measure.

    Attributes:
        seconds: for each candidate at each point, over all processes.
        processes: for each candidate, one after the other; up to twice as many where the noise is large.
        clients: numbers of threads that call a session.
        limit: the seconds that each process may take in all.
        memory: the bytes of address space that each process may take; None for no limit.
        seed: of the order of turns.
    """

    seconds: float = 2.0
    processes: int = 5
    clients: tuple[int, ...] = (1,)
    limit: float = 300.0
    memory: int | None = None
    seed: int = 0


@dataclasses.dataclass
class Point:
    """Inputs of one set of sizes, and the outputs that are right for them."""

    name: str
    at: Mapping[str, int]
    feeds: Mapping[str, Array]
    reference: Reference | None = None


@dataclasses.dataclass
class Series:
    """What was measured of one candidate at one point with one number of clients.

    Attributes:
        times: of all runs.
        wall: seconds in which they ran.
        turns: the time of a run in each round, by the number of the process.
        first: seconds of each process's first run.
        memory: the largest number of bytes.
        judgment: the worst of what was compared.
        failure: why it gave no outputs; empty if it did.
    """

    times: list[float] = dataclasses.field(default_factory=list)
    wall: float = 0.0
    turns: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    first: list[float] = dataclasses.field(default_factory=list)
    memory: int | None = None
    judgment: Judgment | None = None
    failure: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, process: int, measured: Mapping[str, Any], clients: int) -> None:
        """Take what one turn gave."""
        times = measured["times"]
        self.times += times
        self.wall += measured["wall"]
        self.turns.setdefault(process, []).append(_middle(times) if clients == 1 else measured["wall"] / len(times))
        if measured["memory"] is not None:
            self.memory = max(self.memory or 0, measured["memory"])

    def judge(self, found: Judgment) -> None:
        """Take a comparison with the reference; a wrong one stays."""
        worse = self.judgment is None or (found.status == "wrong", found.max_abs or 0.0) > (
            self.judgment.status == "wrong",
            self.judgment.max_abs or 0.0,
        )
        self.judgment = found if worse else self.judgment


def _middle(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


class Rounds:
    """Measures candidates in turns.

    Args:
        candidates: what to measure.
        points: the inputs.
        plan: how long.
        teller: the candidate whose outputs are the reference where a point has none; the first that runs if None.
        ordered: brings a candidate's outputs into the order of the reference's.
        reference_of: makes a reference of a candidate's outputs.
        pairs: candidates whose ratio is wanted; more processes are started until it is precise.
        say: called with one line at each step.

    Attributes:
        series: what was measured so far, also after Ctrl-C.
        points: the inputs.
        opened: facts of each candidate's processes: version, findings, load_seconds.
        interrupted: Ctrl-C ended it.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        points: Sequence[Point],
        plan: Plan,
        *,
        teller: Candidate | None,
        ordered: Callable[[Candidate, Sequence[Array]], tuple[Array, ...]],
        reference_of: Callable[[Candidate, tuple[Array, ...]], Reference],
        pairs: Sequence[tuple[Candidate, Candidate]],
        say: Callable[[str], None],
    ) -> None:
        self._candidates, self.points, self._plan = candidates, points, plan
        self._teller, self._ordered, self._reference_of = teller, ordered, reference_of
        self._pairs, self._say = pairs, say
        self._random = random.Random(plan.seed)
        self.watch = Watch()
        self.opened: dict[int, list[Mapping[str, Any]]] = {id(c): [] for c in candidates}
        self._series: dict[tuple[int, str, int], Series] = {}
        self._steady: dict[tuple[int, str], float] = {}  # seconds of a run after the warm-up
        self.interrupted = False

    def series(self, candidate: Candidate, point: Point, clients: int) -> Series:
        """Return what was measured of a candidate; two candidates may be equal, as the same file given twice is."""
        return self._series.setdefault((id(candidate), point.name, clients), Series())

    def ratio(self, first: Candidate, second: Candidate, point: Point, clients: int) -> Ratio | None:
        """Return the ratio of two candidates' times; None if too little was measured."""
        a, b = (self.series(c, point, clients).turns for c in (first, second))
        both = [process for process in a if process in b]
        return ratio_of([list(zip(a[process], b[process], strict=False)) for process in both])

    def run(self) -> None:
        """Measure until there are enough processes, and the ratios are precise or cannot be made so."""
        try:
            for process in range(_MORE * self._plan.processes):
                if process >= self._plan.processes and self._precise():
                    break
                self._say(f"measuring, processes {process + 1} of {max(self._plan.processes, process + 1)}")
                self._take(process)
        except KeyboardInterrupt:
            self.interrupted = True

    def _precise(self) -> bool:
        widths = [
            found.width
            for first, second in self._pairs
            for point in self.points
            for clients in self._plan.clients
            if (found := self.ratio(first, second, point, clients)) is not None
        ]
        return all(width <= _PRECISE for width in widths)

    # One process of each candidate

    def _take(self, process: int) -> None:
        with contextlib.ExitStack() as stack:
            workers = [(c, stack.enter_context(self._worker(c))) for c in self._candidates if not self._failed(c)]
            for _, worker in workers:
                worker.start()
            open_ones = [(c, worker) for c, worker in workers if self._opens(c, worker)]
            for point in self.points:
                running = [(c, worker) for c, worker in self._teller_first(open_ones) if self._runs(c, worker, point)]
                for clients in self._plan.clients:
                    able = [(c, w) for c, w in running if w.alive and not self.series(c, point, clients).failure]
                    self._turns(process, able, point, clients)

    def _worker(self, candidate: Candidate) -> Worker:
        return Worker(candidate, limit=self._plan.limit, memory=self._plan.memory)

    def _failed(self, candidate: Candidate) -> bool:
        return all(self.series(candidate, p, c).failure for p in self.points for c in self._plan.clients)

    def _teller_first(self, workers: Iterable[tuple[Candidate, Worker]]) -> list[tuple[Candidate, Worker]]:
        return sorted(workers, key=lambda pair: pair[0] is not self._teller)

    def _opens(self, candidate: Candidate, worker: Worker) -> bool:
        with self._noting(candidate, self.points, self._plan.clients) as noted:
            worker.started()
            self.opened[id(candidate)].append(worker.open())
        return not noted

    def _runs(self, candidate: Candidate, worker: Worker, point: Point) -> bool:
        """Run a candidate for the first time, compare its outputs, and warm it up."""
        if not worker.alive or all(self.series(candidate, point, n).failure for n in self._plan.clients):
            return False
        with self._noting(candidate, [point], self._plan.clients) as noted:
            first = worker.run(point.name, point.feeds)["first_seconds"]
            self._compare(candidate, worker, point, self._plan.clients)
            self._steady[id(candidate), point.name] = worker.warm_up(point.name, _WARM_UP)
            for clients in self._plan.clients:
                self.series(candidate, point, clients).first.append(first)
        return not noted

    def _turns(self, process: int, workers: Sequence[tuple[Candidate, Worker]], point: Point, clients: int) -> None:
        if not workers:
            return
        count, seconds = self._division(workers, point)
        left = list(workers)
        for _ in range(count):
            self.watch.look_at_speed()
            for candidate, worker in self._random.sample(left, len(left)):
                with self._noting(candidate, [point], self._from(clients)) as noted:
                    with self.watch.turn(worker.pid):
                        measured = worker.measure(point.name, seconds, least=_LEAST_RUNS, clients=clients)
                    self.series(candidate, point, clients).add(process, measured, clients)
                left = [pair for pair in left if not noted or pair[0] is not candidate]
        for candidate, worker in left:
            with self._noting(candidate, [point], [clients]):
                self._compare(candidate, worker, point, [clients])

    def _from(self, clients: int) -> tuple[int, ...]:
        """Return this number of clients and those that come after it, which are not tried where this one fails."""
        return self._plan.clients[self._plan.clients.index(clients) :]

    def _division(self, workers: Sequence[tuple[Candidate, Worker]], point: Point) -> tuple[int, float]:
        """Return the number of rounds and the seconds of a turn: fewer and longer ones for slow candidates."""
        share = self._plan.seconds / self._plan.processes
        slowest = max(self._steady[id(c), point.name] for c, _ in workers)
        count = min(_MOST_ROUNDS, max(1, int(share / (_LEAST_RUNS * slowest))))
        return count, share / count

    def _compare(self, candidate: Candidate, worker: Worker, point: Point, clients: Iterable[int]) -> None:
        """Hold the outputs of every client's last run against the reference."""
        for given in worker.outputs():
            outputs = self._ordered(candidate, given)
            if point.reference is None:
                point.reference = self._reference_of(candidate, outputs)
            found = point.reference.judge(outputs)
            for number in clients:
                self.series(candidate, point, number).judge(found)

    @contextlib.contextmanager
    def _noting(
        self, candidate: Candidate, points: Iterable[Point], clients: Iterable[int]
    ) -> Iterator[list[Mapping[str, Any]]]:
        """Note why a candidate fails, and go on with the others."""
        noted: list[Mapping[str, Any]] = []
        try:
            yield noted
        except CommandError as error:
            noted.append(error.facts)
            for point in points:
                for number in clients:
                    self.series(candidate, point, number).failure = error.facts
