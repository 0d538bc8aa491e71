"""Write docs/architecture.md from the imports of src/torchport: `python docs/draw_architecture.py`.

A test compares the file with what this script gives. Each arrow of a data flow must be an import in the code.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "torchport"

# In import order, with the purpose of each package.
PACKAGES = {
    "results": "records that users get back",
    "errors": "the error tree",
    "facade": "public names that are imported when they are used",
    "tensors": "dtypes, torch and numpy conversion",
    "process": "silenced output, memory handed back",
    "machine": "the CPU's name and features",
    "terminal": "tables, wrapping, human numbers",
    "irtools": "tools beside onnx_ir: traversal, names, builder, inference, evaluation, shapes, dims, metadata",
    "files": "open, check and save ONNX files",
    "inputs": "input specs, samples, created inputs, binding to a model's inputs",
    "numerics": "tolerances and the comparison of arrays",
    "opset": "conversion between opsets, rules by operator family",
    "engines": "sessions and their options; ONNX Runtime with its workarounds, OpenVINO, onnx's reference",
    "inspection": "describe, cost, lint, diff, matching",
    "verification": "the cases, the verifier, equivalence of two ONNX models",
    "editing": "one edit a file; recipes, selection, transactions",
    "torch_compat": "private and version-dependent parts of torch",
    "operators": "look up, map and define operators; the library of translations",
    "capture": "a PyTorch model becomes an onnx_ir.Model, by one of four routes",
    "conversion": "tp.export, tp.verify, tp.rewrite",
    "comparison": "tp.compare, tp.reduce, tp.record",
    "benchmark": "tp.try_engines, tp.bench: candidates in processes of their own; tp.profile: the time of each kernel",
    "optimization": "tp.optimize, tp.quantize, tp.tune: faster models, verified and measured",
    "reports": "tp.report: one HTML page of a model, its errors and its time; viewer/ is the page's TypeScript",
    "bundles": "what is shipped: a C++ project for a model, and the C++ library in it",
    "environment": "tp.doctor",
    "cli": "one file a verb",
}

FLOWS = {
    "Export": [
        ("cli.export", "conversion.export", "model, inputs, options"),
        ("conversion.export", "conversion.subject", "the PyTorch side"),
        ("conversion.subject", "capture.structure", "flat call"),
        ("conversion.subject", "capture.dynamic_dims", "dynamic dims"),
        ("conversion.subject", "verification.verifier", "cases, reference outputs"),
        ("verification.verifier", "verification.cases", "sizes and values"),
        ("conversion.export", "conversion.attempts", "routes in order"),
        ("conversion.attempts", "capture.routes.route", "capture"),
        ("capture.routes.export", "operators.library", "translations"),
        ("conversion.attempts", "capture.interface", "names"),
        ("capture.interface", "capture.origins", "origins"),
        ("conversion.attempts", "opset.convert", "opset"),
        ("conversion.attempts", "engines.session", "run"),
        ("verification.verifier", "numerics.check", "verdict"),
        ("conversion.export", "files.onnx_files", "save"),
    ],
    "Compare": [
        ("cli.compare", "comparison.compare", "two models, inputs"),
        ("comparison.compare", "comparison.sides", "open both"),
        ("comparison.compare", "comparison.feeds", "inputs"),
        ("comparison.compare", "numerics.error_metrics", "outputs"),
        ("comparison.compare", "comparison.layers", "--layers"),
        ("comparison.layers", "comparison.pair_torch", "PyTorch and ONNX"),
        ("comparison.layers", "comparison.pair_onnx", "two ONNX models"),
        ("comparison.pair_torch", "comparison.torch_trace", "operators of a run"),
        ("comparison.pair_onnx", "inspection.matching.matcher", "nodes"),
        ("comparison.layers", "comparison.divergence", "first divergence"),
        ("comparison.layers", "comparison.regions", "several nodes of one operator"),
    ],
    "Tune": [
        ("cli.tune", "optimization.tuning", "model, samples, budget"),
        ("optimization.tuning", "optimization.tuning_samples", "calibration, comparison"),
        ("optimization.tuning", "optimization.tuning_search", "engines, variants"),
        ("optimization.tuning_search", "optimization.search_space", "what is next"),
        ("optimization.tuning", "optimization.variants", "variant"),
        ("optimization.variants", "optimization.optimizing", "make"),
        ("optimization.tuning", "optimization.tuning_turns", "candidate"),
        ("optimization.tuning_turns", "optimization.agreement", "outputs"),
        ("optimization.tuning", "optimization.tuning_race", "the best"),
        ("optimization.tuning", "optimization.tuned_folder", "save"),
    ],
    "Engines": [
        ("cli.engines", "benchmark.try_engines", "model, reference, sizes"),
        ("benchmark.try_engines", "benchmark.children", "candidates, inputs"),
        ("benchmark.children", "benchmark.child", "commands, answers"),
        ("benchmark.child", "engines.session", "run"),
        ("benchmark.child", "benchmark.torch_candidate", "run PyTorch"),
        ("benchmark.try_engines", "benchmark.older_runtimes", "environments"),
        ("benchmark.try_engines", "benchmark.feeds", "inputs"),
        ("benchmark.try_engines", "benchmark.reference", "outputs"),
        ("benchmark.reference", "numerics.error_metrics", "right or wrong"),
        ("benchmark.try_engines", "comparison.compare", "first divergence"),
        ("benchmark.try_engines", "benchmark.published", "engines that are not here"),
    ],
    "Benchmark": [
        ("cli.bench", "benchmark.benchmarking", "models, engines, sizes, threads, clients"),
        ("benchmark.benchmarking", "benchmark.bench_call", "options, inputs"),
        ("benchmark.bench_call", "benchmark.feeds", "inputs at each point"),
        ("benchmark.benchmarking", "benchmark.rounds", "candidates"),
        ("benchmark.rounds", "benchmark.children", "turns"),
        ("benchmark.children", "benchmark.child", "commands, answers"),
        ("benchmark.rounds", "benchmark.reference", "outputs"),
        ("benchmark.rounds", "benchmark.interference", "what spoils it"),
        ("benchmark.rounds", "benchmark.ratios", "ratio, interval"),
        ("benchmark.benchmarking", "benchmark.bench_table", "rows, verdicts"),
        ("benchmark.bench_table", "benchmark.bench_plot", "--plot"),
    ],
    "Optimize": [
        ("cli.optimize", "optimization.optimizing", "model, target, sizes to fix"),
        ("optimization.pass_runs", "optimization.pass_process", "passes in order"),
        ("optimization.pass_process", "benchmark.command_process", "commands, limits"),
        ("optimization.pass_child", "optimization.passes.graph_pass", "permission for each change"),
        ("optimization.pass_child", "optimization.model_transfer", "changed model"),
        ("optimization.pass_process", "optimization.model_transfer", "unchanged weights"),
        ("optimization.optimizing", "optimization.proven_passes", "model in both processes"),
        ("optimization.proven_passes", "optimization.pass_runs", "steps, records"),
        ("optimization.proven_passes", "verification.equivalence", "before, after"),
        ("optimization.proven_passes", "optimization.speed_ratio", "where speed is claimed"),
        ("optimization.optimizing", "optimization.result", "what each pass did"),
    ],
    "Edit": [
        ("cli.edit", "editing.recipe", "steps"),
        ("cli.edit", "files.onnx_files", "load, save"),
        ("editing.recipe", "editing.registry", "edits by name"),
        ("editing.replace", "editing.selection", "nodes"),
        ("editing.replace", "editing.splice", "new nodes"),
        ("editing.replace", "editing.transaction", "valid, or undone"),
    ],
}


def modules() -> dict[str, Path]:
    names = {
        path: path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".") for path in SOURCE.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items() if name != "__init__"}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of torchport that a module imports, at its top or late."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchport"):
            base = str(node.module).removeprefix("torchport").removeprefix(".")
            for alias in node.names:
                name = f"{base}.{alias.name}".removeprefix(".")
                found.add(name if name in known else base)
    return found


def package(module: str) -> str:
    return module.partition(".")[0]


def table(known: dict[str, Path], needed: dict[str, set[str]]) -> list[str]:
    lines = ["| package | holds | modules | imports |", "|---|---|---|---|"]
    order = list(PACKAGES)
    for name, purpose in PACKAGES.items():
        own = [m for m in known if package(m) == name and known[m].stat().st_size]
        others = {package(other) for module in own for other in needed[module]} - {name}
        lines.append(f"| `{name}` | {purpose} | {len(own)} | {', '.join(p for p in order if p in others)} |")
    return lines


def flow(title: str, arrows: list[tuple[str, str, str]], needed: dict[str, set[str]]) -> list[str]:
    for start, end, _ in arrows:
        if end not in needed.get(start, ()):
            sys.exit(f"{title}: {start} does not import {end}; correct FLOWS in {Path(__file__).name}")
    ids = {name: f"n{i}" for i, name in enumerate(dict.fromkeys(m for a, b, _ in arrows for m in (a, b)))}
    nodes = [f'    {ids[name]}["{name}"]' for name in ids]
    edges = [f'    {ids[start]} -->|"{label}"| {ids[end]}' for start, end, label in arrows]
    return ["", f"## {title}", "", "```mermaid", "graph LR", *nodes, *edges, "```"]


def document() -> str:
    known = modules()
    needed = {name: imports(path, known) for name, path in known.items()}
    lines = [
        "# Architecture",
        "",
        "`draw_architecture.py` draws this page from the imports; a test keeps it true. A package imports only those",
        "above it in the table, and torch is imported only from `torch_compat` on. `__init__.py`, `graph.py` and",
        "`operators/__init__.py` are facades: they list the public names and import them when they are used.",
        "",
        *table(known, needed),
    ]
    for title, arrows in FLOWS.items():
        lines += flow(title, arrows, needed)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "architecture.md").write_text(document())
