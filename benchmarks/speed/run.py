"""Measure the picks of `torchport tune` beside PyTorch, ONNX Runtime, onnxslim, onnxsim and OpenVINO on 16 models.

    make bench-speed
    python benchmarks/speed/run.py --only resnet18,bert_base --budget 60
    python benchmarks/speed/run.py --table

All candidates of a model take turns in processes of their own, in one run. Figures go to results.jsonl beside this
file, and from there to docs/speed.md. A model takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
PAGE = HERE.parent.parent / "docs" / "speed.md"
LIMIT = 3600  # seconds for one model
SAMPLES = 16  # for calibration and comparison
ORT, EAGER, COMPILED, OPENVINO = "ONNX Runtime", "PyTorch", "torch.compile", "OpenVINO"
PEERS = (EAGER, COMPILED, ORT, "onnxslim", "onnxsim", OPENVINO)
TUNED, TUNED_LOSSY = "tune, float32", "tune, 1%"
FASTER = 1.25  # bar: times as fast as ONNX Runtime at float32, by the geometric mean
LOSSY = 2.5  # bar: the same at 1%
SLOWER = 1.03  # bar: times the time of the best peer
LEAST_RATIO = 0.97  # a model at 1% may not be slower than float32 by more than the noise


def measured(name: str, budget: float, seconds: float) -> dict[str, Any]:
    """Return the figures of one model."""
    sys.path.insert(0, str(HERE))
    import models
    import numpy as np
    import torch

    import torchport as tp
    from torchport.benchmark.rounds import Plan, Point, Rounds
    from torchport.engines.tuned import read_tuned
    from torchport.machine import cpu_name, usable_cpus
    from torchport.numerics.tolerance import limits_for
    from torchport.optimization.accuracy import Limits
    from torchport.optimization.agreement import TolerantReference
    from torchport.tensors import to_numpy

    model, example = models.model(name), models.inputs(name, 0)
    feeds = {key: to_numpy(value) for key, value in example.items()}
    with torch.no_grad():
        found = model(**example)
    outputs = tuple(to_numpy(t) for t in (found if isinstance(found, tuple) else (found,)))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tp.export(model, kwargs=example, output=folder / "model.onnx")
        files = _peers(model, example, folder)
        samples = [{k: to_numpy(v) for k, v in models.inputs(name, seed).items()} for seed in range(1, SAMPLES + 1)]
        given: dict[str, Any] = {"data": samples, "inputs": feeds, "budget": budget}
        tunings = {
            TUNED: tp.tune(folder / "model.onnx", folder / "float32", **given),
            TUNED_LOSSY: tp.tune(folder / "model.onnx", folder / "lossy", tolerance=0.01, **given),
        }
        candidates = _candidates(
            name, files, {t: read_tuned(Path(tuning.folder)) for t, tuning in tunings.items()}, folder
        )
        names = tuple(info.name for info in tp.session(folder / "model.onnx").outputs)
        limits = limits_for([], None)
        reference = TolerantReference("PyTorch", outputs, names, limits, allowed=Limits.read(0.01, has_metric=False))
        rounds = Rounds(
            candidates,
            [Point("feeds", {}, feeds, reference)],
            Plan(seconds, 3, limit=1200.0),
            teller=None,
            ordered=lambda candidate, arrays: tuple(arrays),
            reference_of=lambda candidate, arrays: reference,
            pairs=[],
            say=lambda text: None,
        )
        rounds.run()
        rows = {c.label: _row(rounds, c, candidates, np) for c in candidates}
        for label, tuning in tunings.items():
            rows[label]["picked"] = tuning.best
    machine = {"cpu": cpu_name(), "cpus": usable_cpus(), "torch": torch.__version__}
    return {
        "model": name,
        "rows": rows,
        "budget": budget,
        **machine,
        "findings": [str(f) for f in rounds.watch.findings()],
    }


def _peers(model: Any, example: dict[str, Any], folder: Path) -> dict[str, str]:
    """Export with torch alone, and simplify that with onnxslim and onnxsim. Returns the files that could be made."""
    import onnx
    import torch

    bare = folder / "bare.onnx"
    try:
        torch.onnx.export(model, kwargs=example, f=str(bare), dynamo=True, verbose=False)
    except Exception as error:  # noqa: BLE001 - what fails there is a figure too
        print(f"  torch.onnx.export: {type(error).__name__}", file=sys.stderr)
        return {}
    files = {ORT: str(bare)}
    try:
        import onnxslim

        onnx.save(onnxslim.slim(str(bare)), folder / "slim.onnx")
        files["onnxslim"] = str(folder / "slim.onnx")
    except Exception as error:  # noqa: BLE001
        print(f"  onnxslim: {type(error).__name__}: {error}", file=sys.stderr)
    try:
        import onnxsim

        onnx.save(onnxsim.simplify(onnx.load(bare))[0], folder / "sim.onnx")
        files["onnxsim"] = str(folder / "sim.onnx")
    except Exception as error:  # noqa: BLE001
        print(f"  onnxsim: {type(error).__name__}: {error}", file=sys.stderr)
    return files


def _candidates(name: str, files: dict[str, str], tuned: dict[str, Any], folder: Path) -> list[Any]:
    from torchport.benchmark.children import Candidate

    source = f"{HERE / 'models.py'}:{name}"
    found = [
        Candidate(EAGER, "torch", source, mode="torch"),
        Candidate(COMPILED, "torch", source, mode="torch.compile"),
    ]
    found += [Candidate(label, "bare", path) for label, path in files.items()]
    if ORT in files:
        found.append(Candidate(OPENVINO, "engine", files[ORT], "openvino"))
    for label, best in tuned.items():
        path = folder / ("float32" if label == TUNED else "lossy") / best.model
        found.append(
            Candidate(label, "engine", str(path), best.engine, threads=best.threads, settings=dict(best.settings))
        )
    return found


def _row(rounds: Any, candidate: Any, candidates: list[Any], np: Any) -> dict[str, Any]:
    """Return the time of a candidate, and its speed beside plain ONNX Runtime's."""
    point = rounds.points[0]
    series = rounds.series(candidate, point, 1)
    if series.failure:
        return {"failure": str(series.failure["reason"])[:200]}
    row = {"seconds": float(np.median(series.times)), "status": series.judgment.status if series.judgment else ""}
    base = next((c for c in candidates if c.label == ORT), None)
    if base is not None and candidate is not base:
        ratio = rounds.ratio(base, candidate, point, 1)
        row["speed"] = None if ratio is None else ratio.value
    return row


# The table


def speed(result: dict[str, Any], label: str) -> float | None:
    """Return how many times as fast as plain ONNX Runtime a candidate is; None if it did not run right."""
    row = result["rows"].get(label, {})
    if row.get("status") != "right":
        return None
    return 1.0 if label == ORT else row.get("speed")


def bars(results: list[dict[str, Any]]) -> list[str]:
    """Return a line for each bar. Means are geometric."""
    exact = [s for r in results if (s := speed(r, TUNED))]
    lossy = [s for r in results if (s := speed(r, TUNED_LOSSY))]
    behind = []
    for result in results:
        best = max((s for label in PEERS if (s := speed(result, label))), default=1.0)
        own = speed(result, TUNED) or 0.0
        if own * SLOWER < best:
            behind.append(f"{result['model']} ({best / max(own, 1e-9):.2f})")
    slower = [r["model"] for r in results if (speed(r, TUNED_LOSSY) or 0.0) < LEAST_RATIO * (speed(r, TUNED) or 1.0)]
    return [
        f"float32: {_mean(exact):.2f} times as fast as ONNX Runtime by the mean of {len(exact)} (bar {FASTER})",
        f"1%: {_mean(lossy):.2f} times by the mean of {len(lossy)} (bar {LOSSY})",
        f"float32 more than 3% behind the best peer: {', '.join(behind) or 'none'} (bar: none)",
        f"1% slower than float32: {', '.join(slower) or 'none'} (bar: none)",
    ]


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def page(results: list[dict[str, Any]]) -> str:
    """Return docs/speed.md."""
    labels = [*PEERS, TUNED, TUNED_LOSSY]
    budgets = sorted({f"{result['budget']:g}" for result in results})
    machine = results[0] if results else {"cpu": "?", "cpus": 0, "torch": "?"}
    lines = [
        "# Speed",
        "",
        "ONNX Runtime, OpenVINO and PyTorch beside each other, and what [`torchport tune`](tune.md) picks. Written by",
        "`make bench-speed`; do not edit it by hand.",
        "",
        f"Machine: {machine['cpu']}, {machine['cpus']} CPUs, torch {machine['torch']}. Batch 1, random weights.",
        "Figures are times as fast as the file of `torch.onnx.export` in ONNX Runtime, measured side by side, each",
        "candidate in processes of its own; more is better. A dash: it did not run, or its outputs were wrong.",
        f"Each search had {', '.join(budgets)} seconds.",
        "",
        f"| model | ms | {' | '.join(label for label in labels if label != ORT)} | picked at float32 | picked at 1% |",
        f"|---|---|{'---|' * (len(labels) + 1)}",
    ]
    for result in results:
        rows = result["rows"]
        base = rows.get(ORT, {}).get("seconds")
        cells = ["-" if (s := speed(result, label)) is None else f"{s:.2f}" for label in labels if label != ORT]
        picked = [rows.get(label, {}).get("picked", "-") for label in (TUNED, TUNED_LOSSY)]
        time_cell = "-" if base is None else f"{base * 1e3:.3g}"
        lines.append(f"| {result['model']} | {time_cell} | {' | '.join(cells)} | {' | '.join(picked)} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in bars(results)), ""])


def read() -> list[dict[str, Any]]:
    """Return the last result of each model, in the order of the models."""
    sys.path.insert(0, str(HERE))
    from models import MODELS

    stored = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    newest = {result["model"]: result for result in stored}
    return [newest[name] for name in MODELS if name in newest]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what tune picks beside its peers.")
    parser.add_argument("--only", help="names of models, with commas")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each of the two searches")
    parser.add_argument("--seconds", type=float, default=3.0, help="to measure each candidate for at the end")
    parser.add_argument("--table", action="store_true", help="write docs/speed.md from the results there are")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured(options.here, options.budget, options.seconds)))
        return 0
    sys.path.insert(0, str(HERE))
    from models import MODELS

    names = [] if options.table else options.only.split(",") if options.only else list(MODELS)
    for name in names:
        start = time.monotonic()
        limits = ["--budget", str(options.budget), "--seconds", str(options.seconds)]
        command = [sys.executable, __file__, "--here", name, *limits]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            print(f"{name}: no figures (exit code {done.returncode})")
            continue
        with RESULTS.open("a") as file:
            file.write(lines[-1] + "\n")
        result = json.loads(lines[-1])
        shown = [f"{label} {s:.2f}" for label in result["rows"] if (s := speed(result, label)) is not None]
        print(f"{name}: {', '.join(shown)} ({time.monotonic() - start:.0f} s)", flush=True)
    results = read()
    PAGE.write_text(page(results))
    print("\n".join(bars(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
