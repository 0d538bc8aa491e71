"""Load, cut and save beside onnx.utils.extract_model and onnx-graphsurgeon: seconds and peak memory, side by side.

Two models: 3 GB of weights, of which a small part is cut, and 10,000 nodes. Each tool runs in a process of its own, in
turn, several rounds; the ratios are of the medians. Before it is measured it cuts a tiny model: what imports and onnx's
tables of operators take, at the first use, is no tool's work. The last column has it: the process from start to end.
Less than 1 MiB counts as 1. Only torchport waits for the disk (it flushes what it writes), so the time of the processor
is shown beside.
After that what reading the same models takes: load, describe, lint.

    make bench-graph
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOOLS = ("torchport", "extract_model", "graphsurgeon")
VERBS = ("load", "describe", "lint")
ROUNDS = 5
LAYERS, WIDTH = 12, 8192  # 12 x 256 MiB
SMALL_NODES = 10_000
_OPERATORS = ("Relu", "Neg", "Abs", "Sigmoid")


def build(kind: str, path: Path) -> None:
    """A model with many weights, with many nodes, or a tiny one."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    nodes, tensors = [], []
    if kind == "weights":
        for n in range(LAYERS):
            nodes.append(helper.make_node("MatMul", [f"t{n}", f"w{n}"], [f"m{n}"], f"matmul{n}"))
            nodes.append(helper.make_node("Relu", [f"m{n}"], [f"t{n + 1}"], f"relu{n}"))
            tensors.append(onnx.numpy_helper.from_array(np.full((WIDTH, WIDTH), 0.01, np.float32), f"w{n}"))
        shape, last = ["batch", WIDTH], f"t{LAYERS}"
    else:
        count = SMALL_NODES if kind == "nodes" else 4
        for n in range(count):
            nodes.append(helper.make_node(_OPERATORS[n % len(_OPERATORS)], [f"t{n}"], [f"t{n + 1}"], f"node{n}"))
        shape, last = ["batch", 16], f"t{count}"
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("t0", last)]
    inner = [helper.make_tensor_value_info(o, TensorProto.FLOAT, shape) for node in nodes for o in node.output]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors, value_info=inner)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path, save_as_external_data=kind == "weights", location="data.bin")


def places(kind: str) -> tuple[str, str]:
    return ("t5", "m5") if kind == "weights" else ("t5000", "t5010")


def cut(tool: str, source: str, target: str, begin: str, end: str) -> None:
    """What a user of each writes."""
    if tool == "torchport":
        import torchport as tp

        tp.graph.save(tp.graph.cut(source, [begin], [end]), target, external=True)
    elif tool == "extract_model":
        import onnx.utils

        onnx.utils.extract_model(source, target, [begin], [end])
    else:
        import onnx
        import onnx_graphsurgeon as gs

        graph = gs.import_onnx(onnx.load(source))
        tensors = graph.tensors()
        graph.inputs, graph.outputs = [tensors[begin]], [tensors[end]]
        graph.cleanup()
        onnx.save(gs.export_onnx(graph), target, save_as_external_data=True, location=f"{tool}.bin")


def measure(tool: str, tiny: str, source: str, target: str, begin: str, end: str) -> dict[str, Any]:
    """In this process: seconds of load, cut and save; the memory it peaked at beyond what the tiny model took."""
    cut(tool, tiny, target, "t1", "t3")
    before = peak()
    started, worked = time.perf_counter(), time.process_time()
    cut(tool, source, target, begin, end)
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    return {"seconds": seconds, "cpu": cpu, "mib": max(peak() - before, 1024) / 1024}


def read(verb: str, tiny: str, source: str) -> dict[str, Any]:
    """In this process: seconds and memory of one way to look at a model."""
    import torchport as tp

    getattr(tp.graph, verb)(tiny)
    before = peak()
    started = time.perf_counter()
    getattr(tp.graph, verb)(source)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "mib": max(peak() - before, 1024) / 1024}


def peak() -> int:
    """The most memory this process had, in KiB; getrusage would tell its parent's."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])


def run(*arguments: object) -> dict[str, Any]:
    """One process: its figures, or its last words."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["killed"])[-1][:120]}
    return {**json.loads(done.stdout.splitlines()[-1]), "whole": time.perf_counter() - started}


def median(figures: list[dict[str, Any]], key: str) -> float:
    return statistics.median(f[key] for f in figures)


def compare(kind: str, folder: Path) -> None:
    tiny, source = folder / "tiny.onnx", folder / f"{kind}.onnx"
    build("tiny", tiny)
    build(kind, source)
    figures: dict[str, list[dict[str, Any]]] = {tool: [] for tool in TOOLS}
    for _ in range(ROUNDS):
        for tool in TOOLS:
            figures[tool].append(run(tool, tiny, source, folder / f"{tool}.onnx", *places(kind)))
    print(f"{kind}: {'3 GiB of weights' if kind == 'weights' else f'{SMALL_NODES:,} nodes'}, a small part cut")
    for tool in TOOLS:
        show(tool, figures[tool], figures["torchport"])
    for verb in VERBS:
        found = run(verb, tiny, source)
        print(f"  {verb:14} {found['seconds']:8.3f} s  {found['mib']:8.1f} MiB")


def show(tool: str, figures: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    failed = [f["error"] for f in figures if "error" in f]
    if failed:
        print(f"  {tool:14} fails: {failed[0]}")
        return
    seconds, cpu, mib, whole = (median(figures, key) for key in ("seconds", "cpu", "mib", "whole"))
    print(
        f"  {tool:14} {seconds:8.3f} s  {mib:8.1f} MiB   {seconds / median(ours, 'seconds'):6.1f} times ours, "
        f"memory {mib / median(ours, 'mib'):6.1f} times   "
        f"processor {cpu:6.3f} s, {cpu / median(ours, 'cpu'):5.1f} times   process {whole:6.2f} s"
    )


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(read(*sys.argv[1:]) if sys.argv[1] in VERBS else measure(*sys.argv[1:])))
        return
    for kind in ("weights", "nodes"):
        with tempfile.TemporaryDirectory() as folder:
            compare(kind, Path(folder))


if __name__ == "__main__":
    main()
