"""What was measured of a model, for its page: errors of a comparison and times of a profile, by node and as tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from torchport.benchmark.profile_report import Profile, time_text
from torchport.comparison.result import Comparison, Layer, short
from torchport.reports.model_tables import Cell, node, number, table

_ERROR = "largest difference of a node's output, beside the largest number of the reference's"
Numbers = Mapping[str, int]  # the number of each node, by its name


@dataclasses.dataclass(frozen=True)
class Measured:
    """Parts of a page: overlays on the graph, tables, and a verdict where there is one."""

    overlays: tuple[dict[str, Any], ...] = ()
    tables: tuple[dict[str, Any], ...] = ()
    verdict: dict[str, str] | None = None


def of_comparison(comparison: Comparison, numbers: Numbers) -> Measured:
    """Return the error of each node's outputs against the reference."""
    worst: dict[int, tuple[float, str]] = {}
    for layer in comparison.layers:
        place = numbers.get(layer.node)
        if place is None or layer.check is None:
            continue
        error = _finite(layer.check.relative)
        if place not in worst or error > worst[place][0]:
            worst[place] = (error, layer.state)
    return Measured(
        overlays=(_overlay("Error", "", "max", _ERROR, worst),) if worst else (),
        tables=tuple(_comparison_tables(comparison, numbers)),
        verdict={
            "state": "good" if comparison.agrees and not comparison.other_inputs else "bad",
            "text": f"{comparison.names[1]} against {comparison.names[0]}: {comparison.verdict()}",
        },
    )


def _comparison_tables(comparison: Comparison, numbers: Numbers) -> list[dict[str, Any]]:
    outputs = [[f.name, number(_finite(f.max_abs), f"{f.max_abs:.2e}"), short(f)] for f in comparison.outputs]
    found = [table("Outputs against the reference", ("output", "max abs", "verdict"), outputs)]
    if comparison.layers:
        first = comparison.first_divergence
        note = f"first divergence: {first.node} ({first.operator}), {first.origin}" if first is not None else ""
        rows = [_layer_row(layer, numbers) for layer in comparison.layers]
        found.append(table("Errors by tensor", ("node", "operator", "error", "state", "line"), rows, note))
    return found


def _layer_row(layer: Layer, numbers: Numbers) -> list[Cell]:
    error: Cell = ""
    if layer.check is not None:
        error = number(_finite(layer.check.relative), f"{layer.check.relative:.1e}")
    return [node(layer.node, numbers), layer.operator, error, layer.state, layer.origin.source]


def of_profile(profile: Profile, numbers: Numbers) -> Measured:
    """Return the time of each kernel, at the node that computes the most of it."""
    times: dict[int, tuple[float, str]] = {}
    for kernel in profile.nodes:
        place = numbers.get(kernel.name)
        if place is not None:
            fused = f"with {len(kernel.nodes) - 1} fused nodes" if kernel.fused else ""
            times[place] = (times.get(place, (0.0, ""))[0] + kernel.seconds, fused)
    rows: list[list[Cell]] = [
        [node(k.name, numbers), k.operator, number(k.seconds, time_text(k.seconds)), _share(k.share), k.limit_text]
        for k in profile.nodes
    ]
    lines: list[list[Cell]] = [
        [one.source, number(one.seconds, time_text(one.seconds)), _share(one.share)] for one in profile.lines
    ]
    advice: list[list[Cell]] = [[_share(one.gain), one.message, one.next_step] for one in profile.advice]
    shapes = ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in profile.inputs.items())
    note = f"{profile.engine} {profile.version} on {shapes}: a run takes {time_text(profile.run_seconds)}"
    return Measured(
        overlays=(_overlay("Time", "s", "sum", note, times),) if times else (),
        tables=(
            *([table("What to do", ("could save", "what", "next"), advice)] if advice else []),
            table("Time by kernel", ("node", "kernel", "time", "share", "of the limit"), rows, note),
            *([table("Time by Python line", ("line", "time", "share"), lines)] if lines else []),
        ),
    )


def _share(part: float) -> Cell:
    return number(part, f"{part:.1%}")


def _overlay(name: str, unit: str, total: str, note: str, found: Mapping[int, tuple[float, str]]) -> dict[str, Any]:
    return {
        "name": name,
        "unit": unit,
        "total": total,
        "note": note,
        "nodes": list(found),
        "numbers": [value for value, _ in found.values()],
        "notes": [note for _, note in found.values()],
    }


def _finite(value: float) -> float:
    """Return a number that JSON can hold: what is infinite or no number stands as the largest."""
    return value if math.isfinite(value) else 1e300
