"""Export the zoo with torchport and with torch.onnx.export, check both, and write docs/coverage.md.

Each model is exported in a process of its own, within a time limit. Results are kept in build/zoo/results.jsonl and not
asked for again, so that a run that was stopped goes on where it was.

    make bench-zoo                                      what is missing, and the table
    python benchmarks/zoo/run.py --only 'timm/*' --exporter torchport
    python benchmarks/zoo/run.py --redo missed          once more what was not right; `all` for everything
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import table
from models import names
from one import LIMIT

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "zoo" / "results.jsonl"
EXPORTERS = ("torchport", "torch")
THREADS = "2"

Results = dict[tuple[str, str], dict[str, Any]]


def read() -> Results:
    """The last result of each model and exporter."""
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {(line["model"], line["exporter"]): line for line in lines}


def run(name: str, exporter: str) -> dict[str, Any]:
    """Export one model in a process of its own and keep what came of it."""
    command = [sys.executable, str(Path(__file__).with_name("one.py")), exporter, name]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", THREADS), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    result = _read_output(done, time.perf_counter() - started)
    result = {"model": name, "exporter": exporter, **result}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")
    return result


def _read_output(done: subprocess.CompletedProcess[str], seconds: float) -> dict[str, Any]:
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    if done.returncode == -signal.SIGALRM:
        return {"outcome": "failed", "reason": f"over {LIMIT} s", "seconds": float(LIMIT)}
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    why = f"killed by signal {-done.returncode}" if done.returncode < 0 else last
    return {"outcome": "failed", "reason": why[:400], "seconds": round(seconds, 1)}


def _again(before: dict[str, Any], redo: str | None) -> bool:
    return redo == "all" or (redo == "missed" and before["outcome"] != "right")


def main() -> None:
    parser = argparse.ArgumentParser(description="Export every model of the zoo with both exporters.")
    parser.add_argument("--only", action="append", metavar="NAME", help="these; a pattern with * will do")
    parser.add_argument("--redo", choices=("missed", "all"), help="once more what was not right, or everything")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="both if not given")
    options = parser.parse_args()
    known = names()
    chosen = [n for n in known if not options.only or any(fnmatch.fnmatch(n, p) for p in options.only)]
    if not chosen:
        sys.exit(f"no model is called {' or '.join(options.only)}")
    results = read()
    for exporter in options.exporter or EXPORTERS:
        for name in chosen:
            before = results.get((name, exporter))
            if before and not _again(before, options.redo):
                continue
            result = results[name, exporter] = run(name, exporter)
            text = f"{exporter:10}{name:36}{result['outcome']:8}{result['seconds']:>7.1f} s"
            print(text, result.get("reason", ""), flush=True)
    table.write(ROOT / "docs" / "coverage.md", known, results)


if __name__ == "__main__":
    main()
