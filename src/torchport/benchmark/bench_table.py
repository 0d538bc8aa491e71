"""The result of a benchmark: a row for each candidate at each point, and what the differences are worth."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Literal

from torchport.benchmark.engine_table import filled, time_text
from torchport.results import Finding, Record
from torchport.terminal import human, human_bytes, table

_LATENCY_HEAD = ("candidate", "", "median", "p90", "p99", "spread", "runs/s")
_OTHER_HEAD = ("", "version", "max abs", "load", "first run", "memory")

Status = Literal["right", "wrong", "random", "runs", "refuses", "fails", "not measured"]


@dataclasses.dataclass(frozen=True)
class BenchRow(Record):
    """One candidate at one point. Figures are None where it did not run.

    Attributes:
        candidate: its name in the table.
        model: the ONNX file, or the source of a PyTorch model.
        engine: what runs it; ``torch`` and ``torch.compile`` are PyTorch itself.
        threads: that it computes with; None for the engine's own choice.
        at: sizes of dynamic dimensions.
        clients: threads that call the one session.
        status: right or wrong beside the reference; random, if the model draws its outputs at random; runs, if its own
            outputs are the reference; refuses to open or fails to run the model; not measured, if the benchmark was
            interrupted before.
        version: of the engine.
        reason: why it refuses, fails or is wrong; empty otherwise.
        node: the node at fault, where it is known.
        source: the Python line that made the node.
        next_step: what to do about it.
        max_abs: the largest absolute error of any output.
        max_rel: the largest relative error.
        runs: that were timed.
        processes: in which they ran.
        median_seconds: of a run.
        p90_seconds: nine of ten runs are faster.
        p99_seconds: 99 of 100 runs are faster.
        spread: the width of the middle half of the runs, as a part of the median.
        throughput: runs a second, of all clients together.
        load_seconds: to open the model; the median of the processes, as the next one.
        first_seconds: of the first run.
        memory: bytes that the model took in its process at most.
        findings: what else the user should know.
    """

    candidate: str
    model: str
    engine: str
    threads: int | None
    at: Mapping[str, int]
    clients: int
    status: Status
    version: str = ""
    reason: str = ""
    node: str = ""
    source: str = ""
    next_step: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    runs: int = 0
    processes: int = 0
    median_seconds: float | None = None
    p90_seconds: float | None = None
    p99_seconds: float | None = None
    spread: float | None = None
    throughput: float | None = None
    load_seconds: float | None = None
    first_seconds: float | None = None
    memory: int | None = None
    findings: tuple[str, ...] = ()

    @property
    def latency_cells(self) -> tuple[str, ...]:
        """Return the columns of the first table."""
        times = [_time(seconds) for seconds in (self.median_seconds, self.p90_seconds, self.p99_seconds)]
        spread = "" if self.spread is None else f"{self.spread:.1%}"
        rate = "" if self.throughput is None else human(self.throughput)
        return (self.candidate, self.status, *times, spread, rate)

    @property
    def other_cells(self) -> tuple[str, ...]:
        """Return the columns of the second table."""
        error = "" if self.max_abs is None else f"{self.max_abs:.1e}"
        memory = "" if self.memory is None else human_bytes(max(self.memory, 0))
        return (self.candidate, self.version, error, _time(self.load_seconds), _time(self.first_seconds), memory)

    @property
    def notes(self) -> list[str]:
        """Return the lines below the table."""
        place = ", ".join(filter(None, [self.node and f"node '{self.node}'", self.source]))
        reason = f"{self.reason} ({place})" if self.reason and place else self.reason
        return [part for part in (reason, self.next_step, *self.findings) if part]


def _time(seconds: float | None) -> str:
    return "" if seconds is None else time_text(seconds)


@dataclasses.dataclass(frozen=True)
class SpeedVerdict(Record):
    """What the difference of two candidates is worth, at one point.

    Attributes:
        first: a candidate.
        second: another one, which differs in the model, the engine or the threads.
        at: sizes of dynamic dimensions.
        clients: threads that call the one session. The time of a run is its latency for one client, and the inverse of
            the throughput for several.
        ratio: the first's time as a multiple of the second's.
        low: the lower end of the ratio's 95% interval.
        high: the upper end.
        differs: the difference is beyond the noise.
    """

    first: str
    second: str
    at: Mapping[str, int]
    clients: int
    ratio: float
    low: float
    high: float
    differs: bool

    def __str__(self) -> str:
        if not self.differs:
            interval = f"95%: {self.low:.2f} to {self.high:.2f}"
            return f"{self.first} and {self.second}: no difference beyond the noise ({interval})"
        if self.ratio > 1:
            interval = f"95%: {self.low:.2f} to {self.high:.2f}"
            return f"{self.second} is {self.ratio:.2f} times as fast as {self.first} ({interval})"
        interval = f"95%: {1 / self.high:.2f} to {1 / self.low:.2f}"
        return f"{self.first} is {1 / self.ratio:.2f} times as fast as {self.second} ({interval})"


@dataclasses.dataclass(frozen=True)
class BenchTable(Record):
    """What `torchport.bench` gives back.

    Attributes:
        models: the files.
        reference: whose outputs the others are held against; empty if nobody gave any.
        inputs: the shapes of the inputs at each point.
        rows: one for each candidate at each point, with each number of clients.
        verdicts: one for each pair of candidates that differ in one thing only, at each point.
        findings: what spoiled the measurement, and what else the user should know.
        interrupted: the benchmark was cut short.
    """

    models: tuple[str, ...]
    reference: str
    inputs: tuple[Mapping[str, tuple[int, ...]], ...]
    rows: tuple[BenchRow, ...]
    verdicts: tuple[SpeedVerdict, ...] = ()
    findings: tuple[Finding, ...] = ()
    interrupted: bool = False

    json_properties = ("agrees",)

    @property
    def agrees(self) -> bool:
        """Check that every candidate ran, and none of them wrong."""
        return not self.interrupted and bool(self.rows) and all(row.status in ("right", "runs") for row in self.rows)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write latencies and throughputs as a picture, an .svg file."""
        from torchport.benchmark.bench_plot import save_plot

        save_plot(self, path)

    def __str__(self) -> str:
        lines = [filled("", self._title())]
        for at, clients in self._points():
            lines += self._point(at, clients)
        lines += [filled("  ", note) for note in self._notes()]
        return "\n".join([*lines, *(["interrupted: this is the table so far"] if self.interrupted else [])])

    def _title(self) -> str:
        shapes = [", ".join(f"{n}[{','.join(map(str, s))}]" for n, s in point.items()) for point in self.inputs]
        text = f"{', '.join(dict.fromkeys(self.models))} on {'; '.join(shapes)}"
        return text + (f", held against {self.reference}" if self.reference else "")

    def _points(self) -> list[tuple[tuple[tuple[str, int], ...], int]]:
        return list(dict.fromkeys((tuple(row.at.items()), row.clients) for row in self.rows))

    def _point(self, at: tuple[tuple[str, int], ...], clients: int) -> list[str]:
        rows = [row for row in self.rows if (tuple(row.at.items()), row.clients) == (at, clients)]
        verdicts = [v for v in self.verdicts if (tuple(v.at.items()), v.clients) == (at, clients)]
        heading = ["", point_text(dict(at), clients)] if len(self._points()) > 1 else []
        latency = [_LATENCY_HEAD, *(row.latency_cells for row in rows)]
        others = [_OTHER_HEAD, *(row.other_cells for row in rows)]
        lines = [*heading, *table(latency, right=range(2, 7)), "", *table(others, right=range(2, 6))]
        return [*lines, *([""] if verdicts else []), *(filled("  ", str(v)) for v in verdicts)]

    def _notes(self) -> Iterator[str]:
        said = dict.fromkeys(f"{row.candidate}: {note}" for row in self.rows for note in row.notes)
        yield from said
        yield from map(str, self.findings)


def point_text(at: Mapping[str, int], clients: int) -> str:
    """``batch=8, 2 clients``"""
    sizes = [f"{name}={size}" for name, size in at.items()]
    return ", ".join([*sizes, f"{clients} client{'s' if clients > 1 else ''}"])
