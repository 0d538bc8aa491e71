"""Processes that run candidates: start one, give it commands within limits, read its answers, end it.

On Linux a process is stopped while it has no command: its threads cannot spin while another one is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self

from torchport.benchmark import child
from torchport.tensors import Array

_SHOWN = 200  # letters of what a process printed before it died
_LEAST_RUNS = 5
_PATIENCE = 2.0  # seconds that a process may take to end by itself
_STOPS = sys.platform == "linux"  # where a process that is stopped ends with its parent


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


class CandidateError(Exception):
    """A candidate could not obey a command. `facts` has the command as ``stage``, the reason, node and next step."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(facts["reason"])
        self.facts = facts


class Worker:
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
        self.candidate = candidate
        self._limit, self._left, self._memory = limit, limit, memory
        self._busy = False
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asked = "prepare"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="torchport-")))
        self._errors: IO[str] = self._stack.enter_context((self._folder / "errors").open("w+", errors="replace"))
        self._process = subprocess.Popen(
            [self.candidate.python, "-P", child.__file__, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        self._stack.callback(self._end)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Commands

    def start(self) -> None:
        """Begin to import what the candidate needs, and do not wait: several processes may do so at once."""
        request = json.loads(json.dumps(dataclasses.asdict(self.candidate), default=str))
        self._send("prepare", {"request": request, "memory": self._memory})

    def started(self) -> None:
        """Wait until what the candidate needs is imported."""
        self._receive()

    def open(self) -> dict[str, Any]:
        """Open the model. Returns version, findings, ``load_seconds`` and ``memory``."""
        return self._ask("open")

    def run(self, name: str, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Run once on these inputs, which then have a name. Returns ``first_seconds`` and ``memory``."""
        child.save_arrays(self._folder, name, dict(feeds))
        return self._ask("run", feeds=name)

    def warm_up(self, name: str, most: float) -> float:
        """Run until it gets no faster, or for `most` seconds. Returns the seconds of a run."""
        return float(self._ask("warm_up", feeds=name, most=most)["seconds"])

    def measure(self, name: str, seconds: float, *, least: int = 1, clients: int = 1) -> dict[str, Any]:
        """Time runs. Returns ``times`` of all clients' runs, ``wall`` seconds, and ``memory``."""
        return self._ask("measure", feeds=name, seconds=seconds, least=least, clients=clients)

    def outputs(self) -> list[tuple[Array, ...]]:
        """Return the outputs of each client's last run."""
        count = self._ask("outputs")["clients"]
        return [tuple(child.read_arrays(self._folder, f"outputs{n}").values()) for n in range(count)]

    @property
    def alive(self) -> bool:
        """Check that the process can obey."""
        return self._process.poll() is None and not self._busy

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    # The process

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self._send(command, arguments)
        return self._receive()

    def _send(self, command: str, arguments: Mapping[str, Any]) -> None:
        self._asked, self._busy = command, True
        self._signal("SIGCONT")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: there will be no answer
            self._process.stdin.write(json.dumps([command, arguments]) + "\n")
            self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        start = time.monotonic()
        try:
            line = self._answers.get(timeout=max(self._left, 0))
        except queue.Empty:
            self._process.kill()  # it would take the time of other candidates
            raise CandidateError(self._died(f"it takes longer than {self._limit:g} s")) from None
        if not line:
            raise CandidateError(self._died(self._last_words()))
        self._signal("SIGSTOP")
        self._busy = False
        self._left -= time.monotonic() - start
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise CandidateError(answer)
        return answer

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put("")

    def _signal(self, name: str) -> None:
        if _STOPS and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))

    def _died(self, reason: str) -> dict[str, Any]:
        return {"refused": "died", "stage": self._asked, "reason": reason}

    def _last_words(self) -> str:
        """Return why the process ended."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the system killed it: out of memory"
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines()[-1:] or [""])[0][:_SHOWN]
        if code < 0:
            return f"it crashed ({signal.Signals(-code).name}) {last}".strip()
        return last or "it ended without a result"

    def _end(self) -> None:
        """End the process: one that is busy is killed, one that is idle ends when there are no more commands."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._signal("SIGKILL" if self._busy else "SIGCONT")
        try:
            self._process.wait(0 if self._busy and not _STOPS else _PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()


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
    except CandidateError as failure:
        return Outcome(None, failure.facts)
    return Outcome(outputs, facts)
