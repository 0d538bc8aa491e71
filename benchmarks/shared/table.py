"""A section of docs/coverage.md: the figures, the table, and the reason for every miss."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

OUTCOMES = ("right", "wrong", "engine fails", "refused", "over time", "failed")
EXPORTERS = {"torchport": "torchport", "torch": "torch.onnx"}
MEANING = """
- **right**: every number agrees at every size.
- **wrong**: a file was written and gives other numbers at some of these sizes.
- **engine fails**: a file was written, and ONNX Runtime cannot load it or fails at some of these sizes.
- **refused**: torchport wrote no file and said why. torch's exporter never refuses; it fails.
- **over time**: no file within the limit.
- **failed**: an error, a crash, or out of memory.

Seconds are those of the export; torchport's include its proof. Memory is the most the process held until then.
"""

Results = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A benchmark's part of docs/coverage.md.

    Attributes:
        name: the make target that writes it.
        head: its title and what was done.
        packages: whose versions are told.
        groups: the beginnings of names that are counted by themselves.
        bar: the share that has to be right, or the bar in words.
        bar_seconds: the most that an export may take.
        every: whether each model has a line.
    """

    name: str
    head: str
    packages: Sequence[str]
    groups: Sequence[str]
    bar: float | str
    bar_seconds: int
    every: bool = True


def write(path: Path, section: Section, names: list[str], results: Results) -> None:
    """Replace the section between its two comments, or add it at the end."""
    known = [n for n in names if any((n, e) in results for e in EXPORTERS)]
    versions = ", ".join(f"{p} {version(p)}" for p in section.packages)
    parts = [
        section.head + MEANING,
        f"Versions: {versions}.\n",
        _progress(names, results),
        _summary(section, known, results),
        _misses(section, known, results),
        _table(known, results) if section.every else "",
    ]
    first, last = f"<!-- {section.name} -->\n", f"<!-- end of {section.name} -->\n"
    before, _, rest = path.read_text().partition(first)
    after = rest.partition(last)[2]
    path.write_text(before + first + "\n".join(part for part in parts if part) + last + after)


def _progress(names: list[str], results: Results) -> str:
    """What was not run is said first."""
    done = {e: sum((n, e) in results for n in names) for e in EXPORTERS}
    if all(count in (0, len(names)) for count in done.values()):
        return ""
    counts = " and ".join(f"{done[e]} of {len(names)} with {shown}" for e, shown in EXPORTERS.items() if done[e])
    return f"**Not complete: run so far {counts}, over several versions of the code.**\n"


def _summary(section: Section, names: list[str], results: Results) -> str:
    head = ("models", "exporter", *OUTCOMES, "slowest", "median", "most memory")
    rows = [_row(*head), _row(*["---"] * len(head))]
    for library in (*section.groups, ""):
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
            most = max(r.get("peak_mib", 0) for r in found)
            rows.append(_row(f"{library or 'all'}, {len(found)}", shown, *shares, *times, f"{most} MiB"))
    wanted = section.bar if isinstance(section.bar, str) else f"{section.bar:.0%} right, none wrong"
    bar = f"\nThe bar for torchport: {wanted}, none over {section.bar_seconds} s.\n"
    return "### Figures\n\n" + "\n".join(rows) + "\n" + bar


def _misses(section: Section, names: list[str], results: Results) -> str:
    rows = []
    for name in names:
        ours = results.get((name, "torchport"))
        if ours and (ours["outcome"] != "right" or ours["seconds"] > section.bar_seconds):
            reason = ours.get("reason") or f"{ours['seconds']:.0f} s"
            rows.append(_row(name, ours["outcome"], _cell(reason)))
    if not rows:
        return "### What torchport misses\n\nNothing.\n"
    return "### What torchport misses\n\n" + "\n".join(
        [_row("model", "outcome", "reason"), _row(*["---"] * 3), *rows, ""]
    )


def _table(names: list[str], results: Results) -> str:
    measured = ("seconds", "MiB")
    head = ("model", "torchport", *measured, "route, repairs", "torch.onnx", *measured, "torch.onnx's reason")
    rows = [_row(*head), _row(*["---"] * len(head))]
    for name in names:
        ours, theirs = (results.get((name, e), {}) for e in EXPORTERS)
        way = ", ".join([str(ours.get("route", "")), *ours.get("repairs", [])])
        rows.append(_row(name, *_figures(ours), way, *_figures(theirs), _cell(theirs.get("reason", ""))))
    return "### Every model\n\n" + "\n".join(rows) + "\n"


def _figures(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(result.get(key, "") for key in ("outcome", "seconds", "peak_mib"))


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _cell(text: str) -> str:
    """A reason as one cell, without paths of this machine."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")[:300]
