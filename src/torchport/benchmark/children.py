"""Processes that run candidates: open a model, run it and time it, each in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torchport.benchmark import child
from torchport.benchmark.command_process import CommandError, CommandProcess
from torchport.tensors import Array

_LEAST_RUNS = 5


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something that runs a model; plain data, which a child process is given.

    Attributes:
        label: its name in the table.
        kind: an engine of torchport, a PyTorch model, or the ONNX Runtime of another environment.
        model: an ONNX file; for a PyTorch model its source, ``model.py:Net``.
        engine: the engine's name.
        mode: of a PyTorch model: eager or compiled.
        python: the interpreter of the environment it runs in.
        threads: to compute with; its own choice if None.
        settings: the engine's own options.
        libraries: operator libraries, by path.
        operators: Python files that define operators.
        seed: for weights that a PyTorch model draws.
        trust: open a PyTorch file that runs code when it is loaded.
    """

    label: str
    kind: Literal["engine", "torch", "bare"]
    model: str
    engine: str = ""
    mode: str = ""
    python: str = sys.executable
    threads: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    seed: int = 0
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    Attributes:
        outputs: in the model's order; None if it failed.
        facts: version, findings and figures of one that ran; reason, node and next step of one that failed.
    """

    outputs: tuple[Array, ...] | None
    facts: Mapping[str, Any]


class Worker(CommandProcess):
    """A process that runs one candidate. It never outlives the `with` block.

    Args:
        candidate: what it runs.
        limit: the seconds that its commands may take in all.
        memory: the bytes of address space that the process may take; None for no limit.

    Example:
        >>> with Worker(candidate) as worker:
        ...     worker.open()
        ...     worker.run("feeds", {"x": x})
        ...     worker.measure("feeds", seconds=0.1)
    """

    def __init__(self, candidate: Candidate, *, limit: float = 300.0, memory: int | None = None) -> None:
        super().__init__(Path(child.__file__), python=candidate.python, limit=limit)
        self.candidate = candidate
        self._memory = memory

    def start(self) -> None:
        """Begin to import what the candidate needs, and do not wait: several processes may do so at once."""
        request = json.loads(json.dumps(dataclasses.asdict(self.candidate), default=str))
        self.send("prepare", {"request": request, "memory": self._memory})

    def started(self) -> None:
        """Wait until what the candidate needs is imported."""
        self.receive()

    def open(self) -> dict[str, Any]:
        """Open the model. Returns version, findings, ``load_seconds`` and ``memory``."""
        return self.ask("open")

    def run(self, name: str, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Run once on these inputs, which then have a name. Returns ``first_seconds`` and ``memory``."""
        child.save_arrays(self.folder, name, dict(feeds))
        return self.ask("run", feeds=name)

    def warm_up(self, name: str, most: float) -> float:
        """Run until it gets no faster, or for `most` seconds. Returns the seconds of a run."""
        return float(self.ask("warm_up", feeds=name, most=most)["seconds"])

    def measure(self, name: str, seconds: float, *, least: int = 1, clients: int = 1) -> dict[str, Any]:
        """Time runs. Returns ``times`` of all clients' runs, ``wall`` seconds, and ``memory``."""
        return self.ask("measure", feeds=name, seconds=seconds, least=least, clients=clients)

    def outputs(self) -> list[tuple[Array, ...]]:
        """Return the outputs of each client's last run."""
        count = self.ask("outputs")["clients"]
        return [tuple(child.read_arrays(self.folder, f"outputs{n}").values()) for n in range(count)]


def run_candidate(
    candidate: Candidate,
    feeds: Mapping[str, Array],
    *,
    seconds: float = 0.5,
    limit: float = 300.0,
    memory: int | None = None,
) -> Outcome:
    """Run a candidate. Whatever happens to its process is its outcome.

    Args:
        candidate: what to run.
        feeds: the inputs by name.
        seconds: to measure for; 0 for one run.
        limit: the time it may take in all.
        memory: the bytes of address space it may take; None for no limit.
    """
    try:
        with Worker(candidate, limit=limit, memory=memory) as worker:
            worker.start()
            worker.started()
            facts = {**worker.open(), "latency_seconds": None}
            facts |= worker.run("feeds", feeds)
            outputs = worker.outputs()[0]
            if seconds:
                worker.warm_up("feeds", most=seconds)
                measured = worker.measure("feeds", seconds, least=_LEAST_RUNS)
                facts |= {"latency_seconds": statistics.median(measured["times"]), "memory": measured["memory"]}
    except CommandError as failure:
        return Outcome(None, failure.facts)
    return Outcome(outputs, facts)
