"""Export the models of a benchmark with torchport and with torch.onnx.export, check both, and write docs/coverage.md.

Each model is exported in a process of its own, within limits of time and memory. Results are kept in a file and not
asked for again, so that a run that was stopped goes on where it was. What the process said is kept in `logs`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import table

if TYPE_CHECKING:
    from spec import Spec

ROOT = Path(__file__).resolve().parents[2]
EXPORTERS = tuple(table.EXPORTERS)
THREADS = "2"
POLL = 0.1  # seconds between two looks at the memory of a process

Results = dict[tuple[str, str], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What tells one benchmark of models from another.

    Attributes:
        script: the program that calls `main`, which exports one model when it is called with `--one`.
        names: every model.
        find: makes a model's specification from its name.
        results: a line for each model and exporter.
        section: its part of docs/coverage.md.
        seconds: the limit of an export.
        absolute: how far a number may be off, as a share of the largest number of the output.
        mib: the limit of memory.
    """

    script: Path
    names: list[str]
    find: Callable[[str], Spec]
    results: Path
    section: table.Section
    seconds: int
    absolute: float
    mib: int = 8 << 10

    def read(self) -> Results:
        """The last result of each model and exporter."""
        if not self.results.exists():
            return {}
        lines = [json.loads(line) for line in self.results.read_text().splitlines()]
        return {(line["model"], line["exporter"]): line for line in lines}

    def keep(self, results: Results) -> None:
        """Write them in the order of the models, so that a new result changes its own line only."""
        order = {name: place for place, name in enumerate(self.names)}
        known = sorted((key for key in results if key[0] in order), key=lambda key: (order[key[0]], key[1]))
        self.results.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(results[key]) + "\n" for key in known)
        fresh = self.results.with_suffix(".fresh")
        fresh.write_text(text)
        fresh.replace(self.results)

    def run(self, name: str, exporter: str) -> dict[str, Any]:
        """Export one model in a process of its own."""
        logs = ROOT / "build" / self.script.parent.name / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        stem = f"{name.replace('/', '.')}.{exporter}"
        said, answer = logs / f"{stem}.txt", logs / f"{stem}.json"
        threads = os.environ.get("OMP_NUM_THREADS", THREADS)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(self.script), "--one", exporter, name]
        started = time.perf_counter()
        with said.open("w") as err, answer.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
            killed = self._watch(process)
        seconds = round(time.perf_counter() - started, 1)
        result = killed or self._read_output(process.returncode, answer.read_text(), said.read_text(errors="replace"))
        return {"model": name, "exporter": exporter, "seconds": seconds, **result}

    def _watch(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait for the process, and end it when it takes too much memory or does not come back."""
        deadline = time.monotonic() + 2 * self.seconds + 60  # the model is built before, and checked after the export
        peak = 0
        while process.poll() is None:
            now = sum(_resident_mib(pid) for pid in _family(process.pid))
            peak = max(peak, now)
            if now > self.mib or time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                over = f"over {self.mib >> 10} GiB" if now > self.mib else f"over {self.seconds} s with its check"
                return {"outcome": "failed" if now > self.mib else "over time", "reason": over, "peak_mib": peak}
            time.sleep(POLL)
        return {}

    def _read_output(self, code: int, answer: str, said: str) -> dict[str, Any]:
        lines = answer.splitlines()
        if code == 0 and lines:
            return dict(json.loads(lines[-1]))
        if code == -signal.SIGALRM:
            return {"outcome": "over time", "reason": f"over {self.seconds} s", "seconds": float(self.seconds)}
        last = (said.strip().splitlines() or ["no message"])[-1]
        why = f"killed by signal {-code}" if code < 0 else last
        return {"outcome": "failed", "reason": why[:400]}


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _resident_mib(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


def _again(before: dict[str, Any], redo: str | None) -> bool:
    return redo == "all" or (redo == "missed" and before["outcome"] != "right")


def _measure(benchmark: Benchmark, exporter: str, name: str) -> None:
    from measure import Tolerance, measure  # imports torch, which this process does without

    tolerance = Tolerance(absolute=benchmark.absolute)
    measure(exporter, benchmark.find, name, limit=benchmark.seconds, tolerance=tolerance)


def main(benchmark: Benchmark) -> None:
    parser = argparse.ArgumentParser(description="Export every model of the benchmark with both exporters.")
    parser.add_argument("--only", action="append", metavar="NAME", help="these; a pattern with * will do")
    parser.add_argument("--redo", choices=("missed", "all"), help="once more what was not right, or everything")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="both if not given")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _measure(benchmark, *options.one)
        return
    chosen = [n for n in benchmark.names if not options.only or any(fnmatch.fnmatch(n, p) for p in options.only)]
    if not chosen:
        sys.exit(f"no model is called {' or '.join(options.only)}")
    results = benchmark.read()
    for exporter in options.exporter or EXPORTERS:
        for name in chosen:
            before = results.get((name, exporter))
            if before and not _again(before, options.redo):
                continue
            result = results[name, exporter] = benchmark.run(name, exporter)
            benchmark.keep(results)
            text = f"{exporter:10}{name:40}{result['outcome']:13}{result['seconds']:>6.1f} s"
            print(text, result.get("reason", ""), flush=True)
    table.write(ROOT / "docs" / "coverage.md", benchmark.section, benchmark.names, results)
