"""Does `compare` find what is wrong, and how fast beside torch's own comparison of intermediates?

    make bench-compare
    python benchmarks/compare/run.py planted --subject resnet50
    python benchmarks/compare/run.py untouched --only 'timm/*'

Each part runs in processes of their own and prints as it goes.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ZOO = (str(HERE.parent / "zoo"), str(HERE.parent / "shared"))
PLANTINGS = 20


def memory(field: str) -> int:
    """Bytes that this process has (VmRSS), or had at most (VmHWM) since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def planted(subject: str, seeds: list[int]) -> None:
    """In this process: plant each fault, compare, print a line of JSON."""
    sys.path.insert(0, str(HERE))
    import numpy as np
    import onnxruntime
    import torch
    from planting import plant
    from subjects import make

    import torchport as tp
    from torchport.process import release

    model, inputs = make(subject)
    arrays = {n: t.numpy() for n, t in inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        tp.export(model, kwargs=inputs, output=path)
        tp.compare(model, path, inputs=inputs, layers=True)  # what the first call imports and compiles
        rows: list[dict[str, Any]] = []
        for seed in seeds:
            broken = tp.graph.load(path)
            name, kind = plant(broken, seed)
            saved = tp.graph.save(broken, Path(folder) / f"broken_{seed}.onnx")
            whole, wrong = (onnxruntime.InferenceSession(str(p)).run(None, arrays) for p in (path, saved))
            started = time.perf_counter()
            result = tp.compare(model, saved, inputs=inputs, layers=True)
            seconds = time.perf_counter() - started
            node = next(n for n in broken.graph if n.name == name)
            found = result.first_divergence
            props = node.metadata_props
            right = (
                found is not None
                and found.suspects == (name,)
                and found.origin.module == props.get("torchport.module", "")
                and found.origin.source == props.get("torchport.source", "")
            )
            moved = max(
                float(np.abs(a - b).max() / (np.abs(a).max() + 1e-30)) for a, b in zip(whole, wrong, strict=True)
            )
            rows.append(
                {
                    "seed": seed,
                    "kind": kind,
                    "node": name,
                    "operator": node.op_type,
                    "right": right,
                    "said": found and list(found.suspects),
                    "seconds": round(seconds, 2),
                    "output moved": moved,
                }
            )
        del broken, node, props
        for row in rows:  # memory by itself: what was freed is given back first, or it would count as held
            saved = Path(folder) / f"broken_{row['seed']}.onnx"
            gc.collect()
            release()
            forget_peak()
            held = memory("VmRSS")
            tp.compare(model, saved, inputs=inputs, layers=True)
            beyond = memory("VmHWM") - held - saved.stat().st_size  # beyond PyTorch's model and this one
            print(json.dumps({**row, "beyond": beyond >> 20}), flush=True)
        torch.manual_seed(0)


def torch_intermediates(subject: str) -> None:
    """In this process: torch's own comparison of every intermediate value."""
    sys.path.insert(0, str(HERE))
    import torch
    from subjects import make
    from torch.onnx.verification import verify_onnx_program

    model, inputs = make(subject)
    program = torch.onnx.export(model, kwargs=inputs, dynamo=True, verbose=False)
    started = time.perf_counter()
    verify_onnx_program(program, kwargs=inputs, compare_intermediates=True)
    print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def compare_untouched(name: str) -> None:
    """In this process: export a model of the zoo and compare it with what it came from."""
    sys.path[:0] = ZOO
    from models import find

    import torchport as tp

    spec = find(name)
    model = spec.model()
    arguments = {**spec.arguments(spec.example, 0), **spec.fixed}
    with tempfile.TemporaryDirectory() as folder:
        tp.export(model, kwargs=arguments, output=Path(folder) / "model.onnx")
        result = tp.compare(model, Path(folder) / "model.onnx", inputs=arguments, layers=True)
    counts: dict[str, int] = {}
    for layer in result.layers:
        counts[layer.state] = counts.get(layer.state, 0) + 1
    cried = None if result.first_divergence is None else result.first_divergence.node
    print(json.dumps({"outputs": result.agrees, "cried": cried, **counts}), flush=True)


def report_reduce() -> None:
    """A thousand nodes with skip connections, one of them wrong, at random places; by numbers."""
    import random

    import numpy as np
    import onnx_ir as ir

    import torchport as tp
    from torchport.comparison.reduce_checks import Numbers
    from torchport.comparison.tensor_cache import Recorded

    def made(wrong: int | None) -> ir.Model:
        x = ir.val("x", ir.DataType.FLOAT, [4, 16])
        values, nodes = [x], []
        for n in range(1000):
            before = [values[-1], values[max(0, n - 6)]] if n % 9 == 8 else [values[-1]]
            kind = "Add" if len(before) == 2 else ("Tanh" if n == wrong else "Neg")
            node = ir.node("Sub" if n == wrong and kind == "Add" else kind, before, name=f"n{n}")
            node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = f"t{n}", x.type, x.shape
            nodes.append(node)
            values.append(node.outputs[0])
        graph = ir.Graph([x], [values[-1]], nodes=nodes, opset_imports={"": 18}, name="g")
        return ir.Model(graph, ir_version=9)

    feeds = {"x": np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)}
    truth = Recorded(made(None), feeds, engine="onnxruntime", libraries=())
    most, left = 0, 0
    for place in random.Random(0).sample(range(1000), PLANTINGS):
        found = tp.reduce(made(place), Numbers("onnxruntime", against=truth), inputs=truth)
        most, left = max(most, found.checks), max(left, found.nodes)
        if f"n{place}" not in found.names:
            print(f"   place {place}: NOT in {found.names}")
    print(f"reduce: {PLANTINGS} faults in 1,000 nodes, at most {most} checks and {left} nodes left")


def _child(*arguments: str, limit: int = 3600) -> list[dict[str, Any]]:
    command = [sys.executable, str(HERE / "run.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return lines or [{"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}]


def report_planted(subjects: list[str]) -> None:
    for subject in subjects:
        rows = _child("planted-here", subject, *map(str, range(PLANTINGS)))
        for row in rows:
            print("  ", json.dumps(row))
        right = sum(bool(r.get("right")) for r in rows)
        seconds = sorted(r["seconds"] for r in rows if "seconds" in r)
        middle = seconds[len(seconds) // 2] if seconds else float("nan")
        beyond = max((r.get("beyond", 0) for r in rows), default=0)
        print(f"{subject}: {right} of {PLANTINGS} found, median {middle:.1f} s, at most {beyond} MiB beyond the models")
        if subject == "resnet50":
            (theirs,) = _child("torch-here", subject)
            if "seconds" in theirs:
                ratio = theirs["seconds"] / middle
                print(f"{subject}: compare_intermediates {theirs['seconds']:.0f} s, {ratio:.0f} times ours")
            else:
                print(f"{subject}: compare_intermediates: {theirs}")


def report_untouched(only: str | None) -> None:
    sys.path[:0] = (*ZOO, str(HERE))
    from subjects import untouched

    chosen = untouched(only)
    cried = 0
    for name in chosen:
        (row,) = _child("untouched-here", name)[-1:]
        cried += row.get("cried") is not None or not row.get("outputs", False)
        print(f"  {name}: {json.dumps(row)}", flush=True)
    print(f"untouched: {cried} of {len(chosen)} cried wolf or could not be asked")


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant faults and see whether compare finds them.")
    parser.add_argument("part", nargs="?", default="all")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--subject", action="append")
    parser.add_argument("--only")
    options = parser.parse_args()
    if options.part == "planted-here":
        planted(options.rest[0], [int(s) for s in options.rest[1:]])
    elif options.part == "torch-here":
        torch_intermediates(options.rest[0])
    elif options.part == "untouched-here":
        compare_untouched(options.rest[0])
    if options.part in ("all", "planted"):
        report_planted(options.subject or ["resnet50", "bert", "vit_b"])
    if options.part in ("all", "reduce"):
        report_reduce()
    if options.part in ("all", "untouched"):
        report_untouched(options.only)


if __name__ == "__main__":
    main()
