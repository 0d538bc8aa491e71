"""Export every entry of PyTorch's operator database with torchport and with torch.onnx.export; print the table.

Results are kept in build/operators/results.jsonl and not asked for again, so that a run that was stopped goes on.

    make bench-operators                                what is missing, and the table
    python benchmarks/operators/run.py --only 'fft.*' --exporter torchport --redo all
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from database import names

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "operators" / "results.jsonl"
EXPORTERS = ("torchport", "torch")
AT_ONCE = 24  # entries for one process: importing torch takes longer than most of them

Results = dict[tuple[str, str], dict[str, Any]]


def read() -> Results:
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {(line["entry"], line["exporter"]): line for line in lines}


def run(exporter: str, entries: list[str]) -> Iterator[dict[str, Any]]:
    """What came of each entry. A process that dies takes only the entry it was at with it."""
    while entries:
        begun = ""
        for line in _lines(exporter, entries[:AT_ONCE]):
            if "begun" in line:
                begun = line["begun"]
                continue
            yield line
            entries, begun = entries[entries.index(line["entry"]) + 1 :], ""
        if begun:
            yield {"entry": begun, "exporter": exporter, "outcome": "failed", "reason": "crashed, or took too long"}
            entries = entries[entries.index(begun) + 1 :]


def _lines(exporter: str, entries: list[str]) -> Iterator[dict[str, Any]]:
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), exporter, *entries]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)


def table(results: Results, known: list[str]) -> str:
    lines = ["exporter    right         wrong  refused  failed  not run"]
    for exporter in EXPORTERS:
        outcomes = collections.Counter(results.get((n, exporter), {"outcome": "not run"})["outcome"] for n in known)
        share = f"{outcomes['right']} ({outcomes['right'] / len(known):.1%})"
        rest = f"{outcomes['wrong']:6}{outcomes['refused']:9}{outcomes['failed']:8}{outcomes['not run']:9}"
        lines.append(f"{exporter:12}{share:13}{rest}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the operator database with both exporters.")
    parser.add_argument("--only", action="append", metavar="NAME", help="these; a pattern with * will do")
    parser.add_argument("--redo", choices=("missed", "all"), help="once more what was not right, or everything")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="both if not given")
    options = parser.parse_args()
    known = names()
    chosen = [n for n in known if not options.only or any(fnmatch.fnmatch(n, p) for p in options.only)]
    if not chosen:
        sys.exit(f"no entry is called {' or '.join(options.only)}")
    results = read()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for exporter in options.exporter or EXPORTERS:
        waiting = [n for n in chosen if _asked(results.get((n, exporter)), options.redo)]
        for result in run(exporter, waiting):
            results[result["entry"], exporter] = result
            with RESULTS.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{exporter:10} {result['entry']:48} {result['outcome']:8} {result.get('reason', '')}", flush=True)
    print(table(results, known))


def _asked(before: dict[str, Any] | None, redo: str | None) -> bool:
    return before is None or redo == "all" or (redo == "missed" and before["outcome"] != "right")


if __name__ == "__main__":
    main()
