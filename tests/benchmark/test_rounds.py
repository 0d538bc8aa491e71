"""Candidates take turns in fresh processes; one that fails or is wrong is a row, and the others go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from torchport.benchmark import rounds as module
from torchport.benchmark.children import Candidate
from torchport.benchmark.command_process import CommandError
from torchport.benchmark.reference import Reference
from torchport.benchmark.rounds import Plan, Point, Rounds
from torchport.numerics.tolerance import limits_for
from torchport.tensors import Array

RIGHT = (np.float32([1, 2]),)
WRONG = (np.float32([1, 3]),)


@dataclasses.dataclass
class Behavior:
    """What a fake process does at each command."""

    seconds: Callable[[], float] = lambda: 1e-3
    first: tuple[Array, ...] = RIGHT
    measured: tuple[Array, ...] = RIGHT
    fails: str = ""


class FakeWorker:
    """FAKE: stands for a process."""

    behaviors: ClassVar[dict[str, Behavior]] = {}
    log: ClassVar[list[str]] = []

    def __init__(self, candidate: Candidate, *, limit: float, memory: int | None) -> None:
        self._candidate, self._behavior, self.pid = candidate, self.behaviors[candidate.label], 1
        self._outputs, self.alive = self._behavior.first, True

    def __enter__(self) -> Self:
        self.log.append(f"start {self._candidate.label}")
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append(f"end {self._candidate.label}")

    def _obey(self, command: str) -> None:
        if self._behavior.fails == command:
            self.alive = False
            raise CommandError({"refused": "died", "stage": command, "reason": "out of memory"})

    def start(self) -> None: ...

    def started(self) -> None: ...

    def open(self) -> dict[str, Any]:
        self._obey("open")
        return {"version": "1", "findings": [], "load_seconds": 0.1, "memory": 1}

    def run(self, name: str, feeds: Mapping[str, Array]) -> dict[str, Any]:
        self._obey("run")
        return {"first_seconds": 0.2, "memory": 1}

    def warm_up(self, name: str, most: float) -> float:
        return self._behavior.seconds()

    def measure(self, name: str, seconds: float, *, least: int, clients: int) -> dict[str, Any]:
        self._obey("measure")
        self._obey(f"{clients} clients")
        self.log.append(self._candidate.label)
        if self._behavior.fails == "Ctrl-C" and self.log.count(self._candidate.label) > 7:
            raise KeyboardInterrupt
        self._outputs = self._behavior.measured
        each = self._behavior.seconds()
        return {"times": [each] * 4, "wall": 4 * each, "memory": 100}

    def outputs(self) -> list[tuple[Array, ...]]:
        return [self._outputs]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Rounds, list[Candidate], Point]]:
    """Measure fake candidates."""
    monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(module, "_MOST_ROUNDS", 6)

    def run(plan: Plan | None = None, **behaviors: Behavior) -> tuple[Rounds, list[Candidate], Point]:
        FakeWorker.behaviors, FakeWorker.log = behaviors, []
        candidates = [Candidate(name, "engine", f"{name}.onnx") for name in behaviors]
        point = Point("feeds0", {}, {"x": np.zeros(2, np.float32)})
        found = Rounds(
            candidates,
            [point],
            plan or Plan(),
            teller=candidates[0],
            ordered=lambda candidate, outputs: tuple(outputs),
            reference_of=lambda c, outputs: Reference(c.label, outputs, ("y",), limits_for([], None)),
            pairs=[(a, b) for n, a in enumerate(candidates) for b in candidates[n + 1 :]],
            say=lambda text: None,
        )
        found.run()
        return found, candidates, point

    return run


def test_every_candidate_has_a_turn_in_every_round_and_the_order_changes(measure: Any) -> None:
    measure(a=Behavior(), b=Behavior(), c=Behavior())
    turns = [name for name in FakeWorker.log if name in "abc"]
    rounds = ["".join(turns[n : n + 3]) for n in range(0, len(turns), 3)]
    assert len(rounds) == 30
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) == 6


def test_each_process_is_a_fresh_one_and_ends(measure: Any) -> None:
    found, [a, _], point = measure(a=Behavior(), b=Behavior())
    assert FakeWorker.log.count("start a") == FakeWorker.log.count("end a") == 5
    assert list(found.series(a, point, 1).turns) == [0, 1, 2, 3, 4]


def test_noise_is_met_with_more_processes(measure: Any) -> None:
    draw = iter(np.random.default_rng(0).uniform(0.5, 2, 1000))
    measure(a=Behavior(lambda: 1e-3 * next(draw)), b=Behavior())
    assert FakeWorker.log.count("start a") == 10


def test_a_slow_candidate_gets_fewer_and_longer_turns(measure: Any) -> None:
    measure(a=Behavior(lambda: 1.0), b=Behavior(lambda: 1.0))
    assert FakeWorker.log.count("a") == 5


def test_the_ratio_is_that_of_the_times(measure: Any) -> None:
    found, [a, b], point = measure(a=Behavior(lambda: 1.1e-3), b=Behavior(lambda: 1e-3))
    ratio = found.ratio(a, b, point, 1)
    assert ratio.value == pytest.approx(1.1)
    assert ratio.differs


def test_outputs_that_are_wrong_only_while_measured_are_wrong(measure: Any) -> None:
    found, [a, b], point = measure(a=Behavior(), b=Behavior(measured=WRONG))
    assert found.series(a, point, 1).judgment.status == "right"
    assert found.series(b, point, 1).judgment.status == "wrong"
    assert found.series(b, point, 1).judgment.max_abs == 1


@pytest.mark.parametrize("command", ["open", "run", "measure"])
def test_a_candidate_that_fails_is_tried_once_and_the_others_go_on(measure: Any, command: str) -> None:
    found, [a, b], point = measure(a=Behavior(), b=Behavior(fails=command))
    assert found.series(b, point, 1).failure["stage"] == command
    assert FakeWorker.log.count("start b") == 1
    assert len(found.series(a, point, 1).times) == 120
    assert found.ratio(a, b, point, 1) is None


def test_without_the_candidate_that_gives_the_reference_the_next_one_does(measure: Any) -> None:
    found, [*_, c], point = measure(a=Behavior(fails="open"), b=Behavior(), c=Behavior(first=WRONG, measured=WRONG))
    assert point.reference.name == "b"
    assert found.series(c, point, 1).judgment.status == "wrong"


def test_an_interrupt_ends_the_processes_and_keeps_what_was_measured(measure: Any) -> None:
    found, [a, b], point = measure(a=Behavior(), b=Behavior(fails="Ctrl-C"))
    assert found.interrupted
    assert FakeWorker.log.count("start a") == FakeWorker.log.count("end a") == 2
    assert found.series(a, point, 1).times
    assert found.series(b, point, 1).times


def test_several_clients_are_compared_by_throughput(measure: Any) -> None:
    found, [a, b], point = measure(Plan(clients=(2,)), a=Behavior(lambda: 2e-3), b=Behavior(lambda: 1e-3))
    assert found.ratio(a, b, point, 2).value == pytest.approx(2)


def test_a_process_that_dies_under_load_is_started_again_without_it(measure: Any) -> None:
    found, [_, b], point = measure(Plan(clients=(1, 4)), a=Behavior(), b=Behavior(fails="4 clients"))
    assert len(found.series(b, point, 1).turns) == 5
    assert found.series(b, point, 4).failure["reason"] == "out of memory"
    assert not found.series(b, point, 1).failure
    assert FakeWorker.log.count("end b") == FakeWorker.log.count("start b")


def test_another_number_of_outputs_is_wrong() -> None:
    reference = Reference("a", RIGHT, ("y",), limits_for([], None))
    assert reference.judge(RIGHT).status == "right"
    assert reference.judge(RIGHT * 2).status == "wrong"
    assert "it gives 0 outputs, a gives 1" in reference.judge(()).reason
