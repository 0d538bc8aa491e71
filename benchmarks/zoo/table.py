"""docs/coverage.md: the figures, the table, and the reason for every miss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

BAR_SECONDS, BAR_RIGHT = 120, 0.97
OUTCOMES = ("right", "wrong", "refused", "failed")
EXPORTERS = {"torchport": "torchport", "torch": "torch.onnx"}
PACKAGES = ("torch", "onnxruntime", "timm", "transformers")

Results = Mapping[tuple[str, str], Mapping[str, Any]]

HEAD = """# Coverage: the zoo

Written by `make bench-zoo`; not to be edited by hand. The smallest model of every `timm` module and tiny
configurations of `transformers` architectures, with random weights, are exported with a dynamic batch (and sequence)
by `torchport` and by `torch.onnx.export(dynamo=True)` with the same dynamic dimensions. Each export runs in a process
of its own on two cores, with a limit of 120 s for either. The result is then checked by the benchmark, not by
torchport's proof: ONNX Runtime beside PyTorch at the example's sizes and at sizes that the exporter did not see,
batch 1 among them, with and without padding where the model takes a mask.

- **right**: every number agrees at every size.
- **wrong**: a file was written and gives other numbers, or does not run, at some of these sizes.
- **refused**: torchport wrote no file and said why. torch's exporter never refuses; it fails.
- **failed**: an error, a crash, or out of time.

Seconds are those of the export; torchport's include its proof.
"""


def write(path: Path, names: list[str], results: Results) -> None:
    known = [n for n in names if any((n, e) in results for e in EXPORTERS)]
    versions = ", ".join(f"{p} {version(p)}" for p in PACKAGES)
    parts = [
        HEAD,
        f"Versions: {versions}.\n",
        _progress(names, results),
        _summary(known, results),
        _misses(known, results),
        _table(known, results),
    ]
    path.write_text("\n".join(parts))


def _progress(names: list[str], results: Results) -> str:
    """What was not run is said first."""
    done = {e: sum((n, e) in results for n in names) for e in EXPORTERS}
    if min(done.values()) == len(names):
        return ""
    counts = " and ".join(f"{done[e]} of {len(names)} with {shown}" for e, shown in EXPORTERS.items())
    return f"**Not complete: run so far {counts}, over several versions of the code.**\n"


def _summary(names: list[str], results: Results) -> str:
    rows = [_row("models", "exporter", *OUTCOMES, "slowest", "median"), _row(*["---"] * 8)]
    for library in ("timm", "transformers", ""):
        for exporter, shown in EXPORTERS.items():
            found = [results[n, exporter] for n in names if n.startswith(library) and (n, exporter) in results]
            if not found:
                continue
            counts = Counter(r["outcome"] for r in found)
            seconds = sorted(r["seconds"] for r in found)
            shares = [
                f"{counts[o]} ({counts[o] / len(found):.1%})" if o == "right" else str(counts[o]) for o in OUTCOMES
            ]
            times = (f"{seconds[-1]:.0f} s", f"{seconds[len(seconds) // 2]:.0f} s")
            rows.append(_row(f"{library or 'all'}, {len(found)}", shown, *shares, *times))
    bar = f"\nThe bar for torchport: {BAR_RIGHT:.0%} right, none wrong, none over {BAR_SECONDS} s.\n"
    return "## Figures\n\n" + "\n".join(rows) + "\n" + bar


def _misses(names: list[str], results: Results) -> str:
    rows = []
    for name in names:
        ours = results.get((name, "torchport"))
        if ours and (ours["outcome"] != "right" or ours["seconds"] > BAR_SECONDS):
            reason = ours.get("reason") or f"{ours['seconds']:.0f} s"
            rows.append(_row(name, ours["outcome"], _cell(reason)))
    if not rows:
        return "## What torchport misses\n\nNothing.\n"
    return "## What torchport misses\n\n" + "\n".join(
        [_row("model", "outcome", "reason"), _row(*["---"] * 3), *rows, ""]
    )


def _table(names: list[str], results: Results) -> str:
    head = ("model", "torchport", "seconds", "route, repairs", "torch.onnx", "seconds", "torch.onnx's reason")
    rows = [_row(*head), _row(*["---"] * len(head))]
    for name in names:
        ours, theirs = (results.get((name, e), {}) for e in EXPORTERS)
        way = ", ".join([str(ours.get("route", "")), *ours.get("repairs", [])])
        cells = (name, ours.get("outcome", ""), ours.get("seconds", ""), way)
        rows.append(_row(*cells, theirs.get("outcome", ""), theirs.get("seconds", ""), _cell(theirs.get("reason", ""))))
    return "## Every model\n\n" + "\n".join(rows) + "\n"


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _cell(text: str) -> str:
    """A reason as one cell, without paths of this machine."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")[:300]
