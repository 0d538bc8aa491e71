"""Run the cases of a database with torchport and with torch.onnx.export, many in one process.

Importing torch takes longer than most of these exports. A process that dies takes only the name it was at with it, and
results are kept in a file and not asked for again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cases import Find

ROOT = Path(__file__).resolve().parents[2]
EXPORTERS = ("torchport", "torch")
AT_ONCE = 24  # names for one process

Results = dict[tuple[str, str], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Pool:
    """What tells one database from another.

    Attributes:
        script: the program that calls `main`, which exports some names when it is called with `--some`.
        names: finds every name.
        find: makes the cases of a name.
        seconds: the limit of one case.
        exporters: what is run if nothing else is asked for.
        report: gets the names and the results at the end.
    """

    script: Path
    names: Callable[[], list[str]]
    find: Find
    report: Callable[[list[str], Results], None] | None = None
    seconds: int = 60
    exporters: tuple[str, ...] = EXPORTERS

    @property
    def results(self) -> Path:
        return ROOT / "build" / self.script.parent.name / "results.jsonl"

    def read(self) -> Results:
        """The last result of each name and exporter."""
        if not self.results.exists():
            return {}
        lines = [json.loads(line) for line in self.results.read_text().splitlines()]
        return {(line["model"], line["exporter"]): line for line in lines}

    def run(self, exporter: str, names: list[str]) -> Iterator[dict[str, Any]]:
        while names:
            begun = ""
            for line in self._lines(exporter, names[:AT_ONCE]):
                if "begun" in line:
                    begun = line["begun"]
                    continue
                yield line
                names, begun = names[names.index(line["model"]) + 1 :], ""
            if begun:
                reason = f"crashed, or took over {self.seconds} s"
                yield {"model": begun, "exporter": exporter, "seconds": 0.0, "outcome": "failed", "reason": reason}
                names = names[names.index(begun) + 1 :]

    def _lines(self, exporter: str, names: list[str]) -> Iterator[dict[str, Any]]:
        command = [sys.executable, str(self.script), "--some", exporter, *names]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)


def main(pool: Pool) -> None:
    parser = argparse.ArgumentParser(description="Export every case of the database.")
    parser.add_argument("--only", action="append", metavar="NAME", help="these; a pattern with * will do")
    parser.add_argument("--redo", choices=("missed", "all"), help="once more what was not right, or everything")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help=f"{pool.exporters} if not given")
    parser.add_argument("--some", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.some:
        from cases import work

        work(options.some[0], pool.find, options.some[1:], limit=pool.seconds)
        return
    known = pool.names()
    chosen = [n for n in known if not options.only or any(fnmatch.fnmatch(n, p) for p in options.only)]
    if not chosen:
        sys.exit(f"no entry is called {' or '.join(options.only)}")
    results = pool.read()
    pool.results.parent.mkdir(parents=True, exist_ok=True)
    for exporter in options.exporter or pool.exporters:
        waiting = [n for n in chosen if _asked(results.get((n, exporter)), options.redo)]
        for result in pool.run(exporter, waiting):
            results[result["model"], exporter] = result
            with pool.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{exporter:10} {result['model']:48} {result['outcome']:8} {result.get('reason', '')}", flush=True)
    print(figures(results, known))
    if pool.report:
        pool.report(known, results)


def _asked(before: dict[str, Any] | None, redo: str | None) -> bool:
    return before is None or redo == "all" or (redo == "missed" and before["outcome"] != "right")


def figures(results: Results, names: list[str]) -> str:
    lines = ["exporter    right         wrong  engine fails  refused  failed  not run"]
    for exporter in EXPORTERS:
        outcomes = collections.Counter(results.get((n, exporter), {"outcome": "not run"})["outcome"] for n in names)
        share = f"{outcomes['right']} ({outcomes['right'] / len(names):.1%})"
        kinds = {"wrong": 6, "engine fails": 14, "refused": 9, "failed": 8, "not run": 9}
        rest = "".join(f"{outcomes[kind]:{width}}" for kind, width in kinds.items())
        lines.append(f"{exporter:12}{share:13}{rest}")
    return "\n".join(lines)
