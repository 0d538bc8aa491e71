"""The table of engines: which one runs a model right, how fast, and why the others do not."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Literal

from torchport.results import Finding, Record
from torchport.terminal import WIDTH, human_bytes, table

Status = Literal["right", "wrong", "random", "runs", "refuses", "fails", "read, not run"]


@dataclasses.dataclass(frozen=True)
class EngineRow(Record):
    """What one engine makes of a model.

    Attributes:
        engine: its name; ``torch`` and ``torch.compile`` are PyTorch itself.
        status: right or wrong beside the reference; random, if the model draws its outputs at random; runs, if there is
            no reference; refuses to open or fails to run it. An engine that is not here is "read, not run", and
            `reason` has what its published list says.
        version: of the engine.
        reason: why it refuses, fails or is wrong; empty otherwise.
        node: the node at fault, where it is known.
        source: the Python line that made the node.
        max_abs: the largest absolute error of any output; None if nothing was compared.
        max_rel: the largest relative error.
        first_divergence: where a wrong engine first differs.
        load_seconds: to open the model.
        latency_seconds: the median of a run.
        memory: bytes that the model took in its process at most.
        next_step: what to do about it.
        findings: what else the user should know.
    """

    engine: str
    status: Status
    version: str = ""
    reason: str = ""
    node: str = ""
    source: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    first_divergence: str = ""
    load_seconds: float | None = None
    latency_seconds: float | None = None
    memory: int | None = None
    next_step: str = ""
    findings: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        error = "" if self.max_abs is None else f"{self.max_abs:.1e}"
        load = "" if self.load_seconds is None else time_text(self.load_seconds)
        latency = "" if self.latency_seconds is None else time_text(self.latency_seconds)
        memory = "" if self.memory is None else human_bytes(max(self.memory, 0))
        return (self.engine, self.version, self.status, error, load, latency, memory)

    @property
    def notes(self) -> list[str]:
        """Return the lines below the table."""
        if self.first_divergence:
            place = ", ".join(filter(None, [f"first divergence: {self.first_divergence}", self.source]))
            return [self.reason, place, *self.findings]
        place = ", ".join(filter(None, [self.node and f"node '{self.node}'", self.source]))
        reason = f"{self.reason} ({place})" if self.reason and place else self.reason
        return [part for part in (reason, self.next_step, *self.findings) if part]


def time_text(seconds: float) -> str:
    """``0.00123`` is ``1.23 ms``."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return "<1 µs"


@dataclasses.dataclass(frozen=True)
class OpsetRow(Record):
    """How far a model gets in one opset: the status by engine; empty if it cannot be expressed there."""

    opset: int
    engines: Mapping[str, str]
    reason: str = ""

    @property
    def right(self) -> int:
        return sum(status in ("right", "runs") for status in self.engines.values())


@dataclasses.dataclass(frozen=True)
class EngineTable(Record):
    """What every engine makes of a model.

    Attributes:
        model: the file.
        reference: whose answers the others are held against; empty if nobody gave any.
        inputs: the shapes that the model was run at.
        rows: one for each engine, in the order they were tried.
        opsets: one for each opset, if they were asked for.
        widest: the opset in which the most engines are right, the oldest of those; None without `opsets`.
        findings: what else the user should know.
        interrupted: the table was cut short.
    """

    model: str
    reference: str
    inputs: Mapping[str, tuple[int, ...]]
    rows: tuple[EngineRow, ...]
    opsets: tuple[OpsetRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    interrupted: bool = False

    json_properties = ("agrees", "widest")

    @property
    def agrees(self) -> bool:
        """Check that every engine that is here runs the model, and none of them wrong."""
        tried = [row for row in self.rows if row.status != "read, not run"]
        return not self.interrupted and bool(tried) and all(row.status in ("right", "runs") for row in tried)

    @property
    def widest(self) -> int | None:
        best = max((row.right for row in self.opsets), default=0)
        return next((row.opset for row in self.opsets if best and row.right == best), None)

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in self.inputs.items())
        lines = [f"{self.model} on {shapes}" + (f", held against {self.reference}" if self.reference else "")]
        head = ("engine", "version", "", "max abs", "load", "latency", "memory")
        lines += table([head, *(row.cells for row in self.rows)], right=(3, 4, 5, 6))
        by_note: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                by_note.setdefault(note, []).append(row.engine)
        lines += [filled(f"  {', '.join(engines)}: ", note) for note, engines in by_note.items()]
        lines += self._opset_lines()
        lines += [filled("  ", str(finding)) for finding in self.findings]
        return "\n".join([*lines, *(["interrupted: this is the table so far"] if self.interrupted else [])])

    def _opset_lines(self) -> list[str]:
        if not self.opsets:
            return []
        names = list(dict.fromkeys(name for row in self.opsets for name in row.engines))
        rows = [(str(row.opset), *(row.engines.get(n, "-") for n in names)) for row in self.opsets]
        lines = ["", *table([("opset", *names), *rows])]
        lines += [filled(f"  opset {r.opset}: ", r.reason) for r in self.opsets if r.reason and not r.engines][:1]
        best = next((row for row in self.opsets if row.opset == self.widest), None)
        if best is None:
            return [*lines, "  no opset in which an engine is right"]
        return [*lines, f"  widest: opset {best.opset}, right in {best.right} of {len(names)} engines"]


def filled(start: str, text: str) -> str:
    """Return a text in lines that fit the terminal."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=" " * 4, **options)  # type: ignore[arg-type]
