"""Load, cut and save beside onnx.utils.extract_model and onnx-graphsurgeon: seconds and peak memory, side by side.

Two models: 3 GB of weights, of which a small part is cut, and 10,000 nodes. Each tool runs in a process of its own, in
turn, several rounds; the ratios are of the medians.

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
ROUNDS = 3
LAYERS, WIDTH = 12, 8192  # 12 x 256 MiB
SMALL_NODES = 10_000
_OPERATORS = ("Relu", "Neg", "Abs", "Sigmoid")


def build(kind: str, path: Path) -> None:
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
        for n in range(SMALL_NODES):
            nodes.append(helper.make_node(_OPERATORS[n % len(_OPERATORS)], [f"t{n}"], [f"t{n + 1}"], f"node{n}"))
        shape, last = ["batch", 16], f"t{SMALL_NODES}"
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


def measure(tool: str, source: str, target: str, begin: str, end: str) -> dict[str, Any]:
    """In this process: seconds of load, cut and save; the memory it peaked at beyond what the imports took."""
    if tool == "torchport":
        import torchport.graph.cutting  # noqa: F401 - what an import takes is not measured
    else:
        import onnx.utils  # noqa: F401
        import onnx_graphsurgeon  # noqa: F401
    before = peak()
    started = time.perf_counter()
    cut(tool, source, target, begin, end)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "mib": max(peak() - before, 1) / 1024}


def peak() -> int:
    """The most memory this process had, in KiB; getrusage would tell its parent's."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])


def compare(kind: str, folder: Path) -> None:
    source = folder / f"{kind}.onnx"
    build(kind, source)
    figures: dict[str, list[dict[str, Any]]] = {tool: [] for tool in TOOLS}
    for _ in range(ROUNDS):
        for tool in TOOLS:
            target = folder / f"{tool}.onnx"
            command = [sys.executable, __file__, tool, str(source), str(target), *places(kind)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                figures[tool].append({"error": done.stderr.strip().splitlines()[-1][:120]})
            else:
                figures[tool].append(json.loads(done.stdout.splitlines()[-1]))
    ours = figures["torchport"]
    print(f"{kind}: {'3 GiB of weights' if kind == 'weights' else f'{SMALL_NODES:,} nodes'}, a small part cut")
    for tool in TOOLS:
        failed = [f["error"] for f in figures[tool] if "error" in f]
        if failed:
            print(f"  {tool:14} fails: {failed[0]}")
            continue
        seconds, mib = (statistics.median(f[key] for f in figures[tool]) for key in ("seconds", "mib"))
        own_seconds, own_mib = (statistics.median(f[key] for f in ours) for key in ("seconds", "mib"))
        print(
            f"  {tool:14} {seconds:8.2f} s  {mib:8.0f} MiB   "
            f"{seconds / own_seconds:6.1f} times ours, memory {mib / own_mib:6.1f} times"
        )


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
        return
    for kind in ("weights", "nodes"):
        with tempfile.TemporaryDirectory() as folder:
            compare(kind, Path(folder))


if __name__ == "__main__":
    main()
