"""What the verbs found of a model, for its page: overlays on the graph, plots, tables, and a verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchport.benchmark.bench_table import BenchRow, BenchTable, point_text
from torchport.benchmark.profile_report import Profile, time_text
from torchport.comparison.result import Comparison, Layer, short
from torchport.errors import OptionError
from torchport.inspection.diff.result import Difference, NodeChange, Nodes
from torchport.optimization.quantization_report import Layer as QuantizedLayer, Quantized
from torchport.optimization.result import Optimized
from torchport.optimization.tuning_result import Tuning, TuningRow
from torchport.reports.model_tables import Cell, node, number, table
from torchport.results import Case, Exported, Proof
from torchport.terminal import human, human_bytes

_LONGEST = 25  # kernels in the plot
_ERROR = "largest difference of a node's output, beside the largest number of the reference's"
Numbers = Mapping[str, int]  # the number of each node, by its name


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a result adds to a page."""

    overlays: tuple[dict[str, Any], ...] = ()
    plots: tuple[dict[str, Any], ...] = ()
    tables: tuple[dict[str, Any], ...] = ()
    verdict: dict[str, str] | None = None


def parts_of(result: object, numbers: Numbers) -> Parts:
    """Return what a result adds to the page of its model.

    Args:
        result: a comparison, profile, proof, benchmark, export, optimization, quantization, tuning or difference.
        numbers: the number of each node of the page, by its name.

    Raises:
        OptionError: it is no such result.
    """
    for kind, convert in _KINDS:
        if isinstance(result, kind):
            return convert(result, numbers)
    raise OptionError(
        f"a page shows no {type(result).__name__}",
        where="results",
        next_step="give what another verb gave back: compare, profile, verify, bench, diff, export, optimize, ...",
    )


def _of_comparison(comparison: Comparison, numbers: Numbers) -> Parts:
    """Return the error of each node's outputs against the reference."""
    worst: dict[int, tuple[float, str]] = {}
    for layer in comparison.layers:
        place = numbers.get(layer.node)
        if place is None or layer.check is None:
            continue
        error = _finite(layer.check.relative)
        if place not in worst or error > worst[place][0]:
            worst[place] = (error, layer.state)
    errors = [
        (layer.tensor, _finite(layer.check.relative), layer.state == "agrees")
        for layer in comparison.layers
        if layer.check is not None
    ]
    return Parts(
        overlays=({**_overlay("Error", "", "max", _ERROR, worst), "first": "introduced"},) if worst else (),
        plots=(_plot("Error by tensor, in order of execution", "", errors, logarithmic=True),) if errors else (),
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


def _of_profile(profile: Profile, numbers: Numbers) -> Parts:
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
    return Parts(
        overlays=(_overlay("Time", "s", "sum", note, times),) if times else (),
        plots=(_plot("Time by kernel", "s", [(k.name, k.seconds, True) for k in profile.nodes[:_LONGEST]]),),
        tables=(
            *([table("What to do", ("could save", "what", "next"), advice)] if advice else []),
            table("Time by kernel", ("node", "kernel", "time", "share", "of the limit"), rows, note),
            *([table("Time by Python line", ("line", "time", "share"), lines)] if lines else []),
        ),
    )


def _of_proof(proof: Proof, numbers: Numbers) -> Parts:
    rows = [_case_row(case, numbers) for case in proof.cases]
    notes = [f"in {proof.engine}, beside {proof.reference}" if proof.engine else "", *map(str, proof.findings)]
    heads = ("case", "sizes", "max abs", "max rel", "SQNR", "verdict", "note", "node")
    worst = [(c.label, _finite(c.max_rel), c.verdict == "pass") for c in proof.cases if c.checks]
    return Parts(
        plots=(_plot("Largest relative error by case", "", worst, logarithmic=True),) if worst else (),
        tables=(table("Proof", heads, rows, "\n".join(notes)),),
        verdict={"state": "good" if proof.passed else "bad", "text": proof.verdict_line()},
    )


def _case_row(case: Case, numbers: Numbers) -> list[Cell]:
    sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
    figures: list[Cell] = ["", "", ""]
    if case.checks:
        decibels = number(_finite(case.sqnr), "exact" if math.isinf(case.sqnr) else f"{case.sqnr:.0f} dB")
        figures = [_error(case.max_abs), _error(case.max_rel), decibels]
    return [case.label, sizes, *figures, case.verdict, case.note, node(case.node, numbers)]


def _of_export(exported: Exported, numbers: Numbers) -> Parts:
    rows: list[list[Cell]] = [
        [a.route, a.outcome, number(a.seconds, f"{a.seconds:.1f} s"), a.reason, "; ".join(a.repairs)]
        for a in exported.attempts
    ]
    attempts = table("Attempts of the export", ("route", "outcome", "time", "reason", "repairs"), rows)
    proof = _of_proof(exported.proof, numbers)
    return dataclasses.replace(proof, tables=(*proof.tables, attempts))


def _of_benchmark(benchmark: BenchTable, numbers: Numbers) -> Parts:
    rows = [_bench_row(row, numbers) for row in benchmark.rows]
    heads = ("candidate", "at", "status", "median", "p90", "p99", "spread", "runs/s", "memory", "max abs", "node")
    notes = [str(verdict) for verdict in benchmark.verdicts] + [str(finding) for finding in benchmark.findings]
    times = [
        (f"{row.candidate}, {point_text(row.at, row.clients)}", row.median_seconds, row.status in ("right", "runs"))
        for row in benchmark.rows
        if row.median_seconds is not None
    ]
    return Parts(
        plots=(_plot("Median time of a run", "s", times),) if times else (),
        tables=(table("Benchmark", heads, rows, "\n".join(notes)),),
    )


def _bench_row(row: BenchRow, numbers: Numbers) -> list[Cell]:
    spread: Cell = "" if row.spread is None else number(row.spread, f"{row.spread:.1%}")
    rate: Cell = "" if row.throughput is None else number(row.throughput, human(row.throughput))
    memory: Cell = "" if row.memory is None else number(row.memory, human_bytes(max(row.memory, 0)))
    error: Cell = "" if row.max_abs is None else _error(row.max_abs)
    times = [_seconds(one) for one in (row.median_seconds, row.p90_seconds, row.p99_seconds)]
    place = node(row.node, numbers)
    return [row.candidate, point_text(row.at, row.clients), row.status, *times, spread, rate, memory, error, place]


def _of_difference(difference: Difference, numbers: Numbers) -> Parts:
    """Return the nodes of the second model that are not in the first, or are others there."""
    nodes = difference.nodes
    found = {one.after: (1, f"{one.before} before") for one in nodes.renamed}
    found |= {one.name_after: (2, _changes(one)) for one in nodes.changed}
    found |= {one.name: (3, "") for one in nodes.added}
    places = {numbers[name]: (float(kind), note) for name, (kind, note) in found.items() if name in numbers}
    overlay = _overlay("Changes", "", "max", f"of {difference.b} beside {difference.a}", places)
    removed: list[list[Cell]] = [
        [one.name, one.operator, ", ".join(one.reads), ", ".join(one.read_by)] for one in nodes.removed
    ]
    changed: list[list[Cell]] = [[node(n, numbers), _STATES[kind - 1], note] for n, (kind, note) in found.items()]
    weights: list[list[Cell]] = [[w.name_after, w.type, w.type_after] for w in difference.weights.changed]
    weights += [[w.name, "", w.type] for w in difference.weights.added]
    weights += [[w.name, w.type, ""] for w in difference.weights.removed]
    others: list[list[Cell]] = [[f"{c.kind} {c.name}: {c.what}", c.before, c.after] for c in difference.interface]
    others += [[c.what, c.before, c.after] for c in difference.header]
    same = "the models are the same" if difference.same else _counted(nodes)
    return Parts(
        overlays=({**overlay, "kinds": list(_STATES)},) if places else (),
        tables=tuple(
            table(title, heads, rows)
            for title, heads, rows in (
                ("Nodes that differ", ("node", "is", "how"), changed),
                ("Nodes that are gone", ("node", "operator", "read", "read by"), removed),
                ("Weights that differ", ("weight", "before", "after"), weights),
                ("Interface and header", ("what", "before", "after"), others),
            )
            if rows
        ),
        verdict={"state": "good" if difference.same else "none", "text": f"beside {difference.a}: {same}"},
    )


_STATES = ("renamed", "changed", "added")


def _counted(nodes: Nodes) -> str:
    counts = {"added": nodes.added, "gone": nodes.removed, "changed": nodes.changed, "renamed": nodes.renamed}
    found = ", ".join(f"{len(some)} {name}" for name, some in counts.items() if some)
    return f"of {nodes.after} nodes {found}" if found else "no node differs"


def _changes(change: NodeChange) -> str:
    parts = [f"{change.operator} before"] if change.operator != change.operator_after else []
    parts += [f"{a.name}: {a.before or 'not given'} → {a.after or 'not given'}" for a in change.attributes]
    return ", ".join(parts + [f"{r.slot}: {r.before} → {r.after}" for r in change.inputs])


def _of_optimization(optimized: Optimized, numbers: Numbers) -> Parts:
    rows: list[list[Cell]] = [
        [run.name, run.verdict, number(run.nodes_after - run.nodes_before), number(run.changes), run.reason]
        for run in optimized.passes
    ]
    note = f"for {optimized.target}: {optimized.nodes_before} nodes before, {optimized.nodes_after} after"
    passes = table("Passes of the optimization", ("pass", "verdict", "nodes", "changes", "reason"), rows, note)
    proof = _of_proof(optimized.proof, numbers)
    return dataclasses.replace(proof, tables=(passes, *proof.tables))


def _of_quantization(quantized: Quantized, numbers: Numbers) -> Parts:
    found = ((_node_of(one, numbers), one) for one in quantized.layers)
    places = {place: (_PRECISION.index(one.kept) + 1.0, one.why) for place, one in found if place >= 0}
    alone = [(one.name, one.noise, one.kept == "quantized") for one in quantized.layers if one.noise is not None]
    noise = [(name, _finite(value), good) for name, value, good in alone]
    rows = [_quantized_row(layer, numbers) for layer in quantized.layers]
    heads = ("layer", "operator", "is", "noise alone", "float time", "time", "why", "line")
    notes = [quantized.scheme, f"accuracy on held-out samples: {quantized.accuracy} (asked: {quantized.limits})"]
    notes += [f"weights: {human_bytes(quantized.float_bytes)} → {human_bytes(quantized.bytes)}"]
    notes += [f"measured: {quantized.speed}"] if quantized.speed is not None else []
    precision = _overlay("Precision", "", "max", "layers that are quantized, and those left in float", places)
    counted = f"{quantized.quantized_layers} layers quantized, {quantized.float_layers} left in float"
    return Parts(
        overlays=({**precision, "kinds": list(_PRECISION)},) if places else (),
        plots=(_plot("Noise of each layer alone", "", noise, logarithmic=True),) if noise else (),
        tables=(table("Layers", heads, rows, "\n".join([*notes, *map(str, quantized.findings)])),),
        verdict={"state": "good" if quantized.accuracy.ok else "bad", "text": f"{counted}; {quantized.accuracy}"},
    )


_PRECISION = ("quantized", "float")


def _node_of(layer: QuantizedLayer, numbers: Numbers) -> int:
    """Return the node of a layer: under its own name, or the one that ONNX Runtime's quantizer gives it."""
    return numbers.get(layer.name, numbers.get(f"{layer.name}_quant", -1))


def _quantized_row(layer: QuantizedLayer, numbers: Numbers) -> list[Cell]:
    noise: Cell = "" if layer.noise is None else _error(layer.noise)
    times = [_seconds(layer.float_seconds), _seconds(layer.seconds)]
    place: Cell = {"text": layer.name, "node": _node_of(layer, numbers)}
    return [place, layer.operator, layer.kept, noise, *times, layer.why, layer.source]


def _of_tuning(tuning: Tuning, numbers: Numbers) -> Parts:
    rows = [_tuning_row(row) for row in tuning.rows]
    heads = ("candidate", "is", "time", "speed", "noise", "file", "memory", "why")
    note = f"best for {tuning.objective}, within {tuning.tolerance}: {tuning.best}"
    times = [(row.candidate, row.seconds, row.status != "dropped") for row in tuning.rows if row.seconds is not None]
    return Parts(
        plots=(_plot("Time of each candidate", "s", times),) if times else (),
        tables=(table("Tuning", heads, rows, "\n".join([note, *map(str, tuning.findings)])),),
    )


def _tuning_row(row: TuningRow) -> list[Cell]:
    speed: Cell = "" if row.ratio is None else number(1 / row.ratio, f"{1 / row.ratio:.2f}x")
    noise: Cell = "" if row.noise is None else _error(row.noise)
    sizes: list[Cell] = ["" if n is None else number(n, human_bytes(max(n, 0))) for n in (row.size, row.memory)]
    return [row.candidate, row.status, _seconds(row.seconds), speed, noise, *sizes, row.reason]


_KINDS: tuple[tuple[type, Callable[[Any, Numbers], Parts]], ...] = (
    (Comparison, _of_comparison),
    (Profile, _of_profile),
    (Proof, _of_proof),
    (Exported, _of_export),
    (BenchTable, _of_benchmark),
    (Optimized, _of_optimization),
    (Difference, _of_difference),
    (Quantized, _of_quantization),
    (Tuning, _of_tuning),
)


def _seconds(value: float | None) -> Cell:
    return "" if value is None else number(value, time_text(value))


def _error(value: float) -> Cell:
    return number(_finite(value), f"{value:.1e}")


def _plot(
    title: str, unit: str, bars: Sequence[tuple[str, float | None, bool]], *, logarithmic: bool = False
) -> dict[str, Any]:
    """Return a plot of bars: a label, a number, and whether it is as it should be."""
    shown = [{"label": label, "number": value, "good": good} for label, value, good in bars[:_MOST_BARS]]
    return {"title": title, "unit": unit, "logarithmic": logarithmic, "bars": shown}


_MOST_BARS = 400


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
