"""The result of a search: every choice with its figures, the frontier, and the one that was saved."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from torchport.benchmark.engine_table import filled, time_text
from torchport.results import Finding, Record
from torchport.terminal import human_bytes, table

_HEAD = ("candidate", "time", "speed", "SQNR", "size", "memory")
_SHOWN = 14  # rows of candidates that ran

Status = Literal["best", "frontier", "behind", "dropped"]


@dataclasses.dataclass(frozen=True)
class TuningRow(Record):
    """One choice. Figures are None where it was not measured.

    Attributes:
        candidate: engine, variant and options.
        engine: that runs it.
        variant: what was done to the model.
        threads: to compute with; None for the engine's own choice.
        settings: of the engine.
        status: the best; on the frontier: no other one is better in every figure; behind; dropped.
        ratio: its time as a multiple of the time of the model as given in the default engine.
        seconds: of a run; with the objective throughput, the inverse of the runs in a second.
        noise: the error as a part of the signal, in power: 1e-4 is an SQNR of 40 dB; 0 where nothing differs.
        max_abs: the largest absolute error.
        size: bytes of the file.
        memory: bytes that the model took in its process.
        reason: why it was dropped.
    """

    candidate: str
    engine: str
    variant: str
    threads: int | None
    settings: Mapping[str, Any]
    status: Status
    ratio: float | None = None
    seconds: float | None = None
    noise: float | None = None
    max_abs: float | None = None
    size: int | None = None
    memory: int | None = None
    reason: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        mark = {"best": " *", "frontier": " +"}.get(self.status, "  ")
        seconds = "" if self.seconds is None else time_text(self.seconds)
        speed = "" if self.ratio is None else f"{1 / self.ratio:.2f}x{mark}"
        sqnr = "" if self.noise is None else "exact" if not self.noise else f"{-10 * math.log10(self.noise):.0f} dB"
        sizes = ["" if n is None else human_bytes(float(f"{max(n, 0):.3g}")) for n in (self.size, self.memory)]
        return (self.candidate, seconds, speed, sqnr, *sizes)


@dataclasses.dataclass(frozen=True)
class Tuning(Record):
    """What `torchport.tune` gives back.

    Attributes:
        folder: that holds the best model; `torchport.session` opens it.
        model: the file of the best model.
        best: the choice that was saved.
        rows: one for each choice, the fastest first.
        objective: what it was tuned for.
        tolerance: that was allowed.
        speedup: times as fast as the model as given, by the final race; 1.0 where that stayed the best.
        low: the lower end of the 95% interval of `speedup`; None where there was no time for a race.
        high: the upper end.
        seconds: that the search took.
        resumed: figures that came from an earlier search.
        findings: what else the user should know.
        interrupted: the search was cut short; the best so far is saved, and the same call goes on.
    """

    folder: str
    model: str
    best: str
    rows: tuple[TuningRow, ...]
    objective: str
    tolerance: str
    speedup: float
    low: float | None
    high: float | None
    seconds: float
    resumed: int = 0
    findings: tuple[Finding, ...] = ()
    interrupted: bool = False

    json_properties = ("frontier",)

    @property
    def frontier(self) -> tuple[str, ...]:
        """Return the candidates that no other one beats in time, noise, size and memory together."""
        return tuple(row.candidate for row in self.rows if row.status in ("best", "frontier"))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write times and noise as a picture, an .svg file."""
        from torchport.optimization.tuning_plot import save_tuning_plot

        save_tuning_plot(self, path)

    def __str__(self) -> str:
        running = [row for row in self.rows if row.status != "dropped"]
        lines = table([_HEAD, *(row.cells for row in _shortened(running))], right=range(1, 6))
        if len(running) > _SHOWN:
            lines.append(f"  and {len(running) - len(_shortened(running))} more that are behind")
        lines += ["  * the best   + on the frontier: no other is better in every column", ""]
        lines += [filled("  dropped: ", f"{names}: {reason}") for reason, names in _dropped(self.rows)]
        lines += [filled("  ", str(finding)) for finding in self.findings]
        return "\n".join([*lines, filled("", self._verdict())])

    def _verdict(self) -> str:
        gain = f"{self.speedup:.2f} times as fast as the model as given"
        if self.low is not None and self.high is not None:
            gain += f" (95%: {self.low:.2f} to {self.high:.2f})"
        if self.speedup == 1.0:
            gain = "nothing was faster beyond the noise" if self.objective in ("latency", "throughput") else ""
        text = f"{self.model}: {self.best}" + (f"; {gain}" if gain else "")
        return f"interrupted; the best so far is saved: {text}" if self.interrupted else text


def _shortened(rows: Sequence[TuningRow]) -> list[TuningRow]:
    """Return the rows worth showing: the best, the frontier, and the fastest of the others."""
    if len(rows) <= _SHOWN:
        return list(rows)
    kept = [n for n, row in enumerate(rows) if row.status in ("best", "frontier")]
    others = [n for n in range(len(rows)) if n not in kept]
    return [rows[n] for n in sorted([*kept, *others[: max(0, _SHOWN - len(kept))]])]


def _dropped(rows: Sequence[TuningRow]) -> Iterator[tuple[str, str]]:
    """Give each reason with the candidates that it dropped."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "dropped":
            reasons.setdefault(row.reason, []).append(row.candidate)
    for reason, names in reasons.items():
        yield reason, "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
