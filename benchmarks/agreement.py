"""Does every engine give PyTorch's answers on the forty untouched models of `bench-compare`?

    make bench-agreement                                what is missing, and the table
    python benchmarks/agreement.py --only 'timm/*'
    python benchmarks/agreement.py --redo missed        once more what was not right; `all` for everything

Each model is exported and proven, and `tp.try_engines` runs the saved file in all engines that are here, on other
inputs than the example's. An engine that does not give the answers must be named with the node at fault.

Results are kept in a file, a line a model, and not asked for again. The table is a part of docs/coverage.md.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
COVERAGE = ROOT.parent / "docs" / "coverage.md"
RESULTS = ROOT / "agreement.jsonl"
PATHS = [str(ROOT / part) for part in ("zoo", "shared", "compare")]
SEED = 1  # of the inputs; the example's is 0
LIMIT = 1800  # seconds for one model in all engines
KEPT = ("engine", "status", "max_abs", "node", "source", "reason", "first_divergence")
GOOD = ("right", "read, not run")
FIRST, LAST = "<!-- bench-agreement -->\n", "<!-- end of bench-agreement -->\n"
HEAD = """## Engines

Written by `make bench-agreement`; not to be edited by hand. {count} models of the zoo that `bench-compare` does not
touch are exported and proven, and [`torchport engines`](engines.md) runs the saved files in every engine that is here,
on other inputs than the example's. Right is what PyTorch gives, within the proof's tolerances.
"""

Rows = list[dict[str, Any]]


def here(name: str) -> None:
    """In this process: a row of JSON for each engine."""
    sys.path[:0] = PATHS
    from measure import leaves
    from models import find

    import torchport as tp

    spec = find(name)
    model = spec.model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        tp.export(model, kwargs={**spec.arguments(spec.example, 0), **spec.fixed}, output=path)
        arguments = spec.arguments(spec.example, SEED)
        inputs = tuple(leaves(arguments))
        for row in tp.try_engines(path, flat(model, arguments, spec.fixed), inputs=inputs, seconds=0.2, limit=600).rows:
            print(json.dumps({key: getattr(row, key) for key in KEPT}), flush=True)


def flat(model: Any, arguments: dict[str, Any], fixed: Mapping[str, Any]) -> Any:
    """Return the model with its arguments in order, as the ONNX file takes them, and those that are no tensors."""
    import torch

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: torch.Tensor) -> Any:
            return self.model(**filled(copy.deepcopy(arguments), iter(given)), **fixed)

    return Flat().eval()


def filled(value: Any, given: Iterator[Any]) -> Any:
    """Return nested arguments with other tensors, in the order of `measure.leaves`."""
    import torch

    if isinstance(value, torch.Tensor):
        return next(given)
    if isinstance(value, dict):
        return {name: filled(child, given) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(filled(child, given) for child in value)
    for layer in getattr(value, "layers", ()):  # a cache
        layer.keys, layer.values = next(given), next(given)
    return value


def run(name: str) -> Rows:
    """Return the rows of a model, tried in a process of its own; one row with the reason where there is no table."""
    command = [sys.executable, __file__, "--here", name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            err = f"over {LIMIT} s"
            out = ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    why = (err.strip().splitlines() or ["no message"])[-1][:300]
    return rows or [{"engine": "torchport", "status": "no table", "node": "", "source": "", "reason": why}]


def read() -> dict[str, Rows]:
    if not RESULTS.exists():
        return {}
    return {line["model"]: line["rows"] for line in map(json.loads, RESULTS.read_text().splitlines())}


def keep(found: dict[str, Rows], names: list[str]) -> None:
    fresh = RESULTS.with_suffix(".fresh")
    fresh.write_text("".join(json.dumps({"model": n, "rows": found[n]}) + "\n" for n in names if n in found))
    fresh.replace(RESULTS)


def missed(rows: Rows) -> Rows:
    return [row for row in rows if row["status"] not in GOOD]


def unnamed(rows: Rows) -> int:
    return sum(not row["node"] for row in missed(rows))


def report(found: dict[str, Rows], names: list[str]) -> str:
    """Return the section of docs/coverage.md."""
    done = [name for name in names if name in found]
    engines = list(dict.fromkeys(row["engine"] for name in done for row in found[name]))
    counts = {e: Counter(row["status"] for n in done for row in found[n] if row["engine"] == e) for e in engines}
    statuses = list(dict.fromkeys(status for counted in counts.values() for status in counted))
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "onnx", "onnxruntime", "openvino"))
    lines = [HEAD.format(count=len(names)), f"Versions: {versions}.\n"]
    if len(done) < len(names):
        lines.append(f"**Not complete: {len(done)} of {len(names)} so far.**\n")
    lines += [_row("engine", *statuses), _row(*["---"] * (1 + len(statuses)))]
    lines += [_row(engine, *(counted.get(status, 0) for status in statuses)) for engine, counted in counts.items()]
    total = sum(unnamed(found[name]) for name in done)
    lines.append(f"\nThe bar: right, or named with the node that is not. {total} without a node.\n")
    misses = [(name, row) for name in done for row in missed(found[name])]
    if misses:
        lines += [_row("model", "engine", "", "node", "reason"), _row(*["---"] * 5)]
        lines += [
            _row(name, row["engine"], row["status"], f"{row['node'] or 'NO NODE'} {row['source']}".strip(), _cell(row))
            for name, row in misses
        ]
        lines.append("")
    return "\n".join(lines)


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _cell(row: dict[str, Any]) -> str:
    text = "; ".join(filter(None, [row["reason"], row.get("first_divergence")]))
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")[:300]


def write(section: str) -> None:
    """Replace the section between its two comments, or add it at the end."""
    before, _, rest = COVERAGE.read_text().partition(FIRST)
    COVERAGE.write_text(before + FIRST + section + LAST + rest.partition(LAST)[2])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run forty models in every engine.")
    parser.add_argument("--only", help="a pattern of names")
    parser.add_argument("--redo", choices=("missed", "all"), help="once more what was not right, or everything")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        here(options.here)
        return 0
    sys.path[:0] = PATHS
    from subjects import untouched

    names = untouched(None)
    found = read()
    for name in names:
        wanted = options.only is None or fnmatch.fnmatch(name, options.only)
        again = options.redo == "all" or (options.redo == "missed" and missed(found.get(name, [])))
        if not wanted or (name in found and not again):
            continue
        found[name] = run(name)
        keep(found, names)
        print(f"  {name}: {', '.join(row['engine'] + ' ' + row['status'] for row in found[name])}", flush=True)
    section = report(found, names)
    write(section)
    print(section)
    left = sum(unnamed(rows) for rows in found.values()) + sum(name not in found for name in names)
    print(f"{'met' if not left else 'NOT met'}: {left} without a node or not run")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
