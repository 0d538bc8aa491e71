"""What the verdicts of `torchport bench` are worth: `make bench-engines`.

The same file against itself must show no difference, and a file with a tenth more work must be found. Beside each run
of the first kind a plain loop over ONNX Runtime measures the file in a process of its own: the medians must agree.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import torchport as tp
from torchport.benchmark.bench_table import SpeedVerdict

RUNS = 20
FOUND = 0.95  # of the runs in which the file with more work must be found
BAR = 0.03  # between the medians of the benchmark and of the plain loop
LAYERS, WIDTH, ROWS = 10, 256, 32

LOOP = """
import sys, time
import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = {"x": np.random.default_rng(0).standard_normal((int(sys.argv[2]), int(sys.argv[3]))).astype(np.float32)}
times = []
for _ in range(1000):
    start = time.perf_counter()
    session.run(None, feeds)
    times.append(time.perf_counter() - start)
print(float(np.median(times[100:])))
"""


def chain(layers: int, path: Path) -> str:
    """Save a chain of linear layers; those beyond the tenth change nothing and cost the same."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for n in range(layers):
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16 if n < LAYERS else np.eye(WIDTH)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{n}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{n}"], [f"h{n}"]))
        last = "y" if n == layers - 1 else f"r{n}"
        nodes.append(helper.make_node("Relu", [f"h{n}"], [last]))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def verdict(first: str, second: str, seed: int) -> tuple[SpeedVerdict, float]:
    """Return the verdict of one benchmark, and the median of its first candidate."""
    start = time.monotonic()
    table = tp.bench([first, second], at={"batch": ROWS}, threads=1, seed=seed)
    assert table.agrees, str(table)
    [found] = table.verdicts
    median = table.rows[0].median_seconds or 0.0
    notes = "; ".join(str(f) for f in table.findings)
    print(f"  {found}; {table.rows[0].processes} processes, {time.monotonic() - start:.0f} s; {notes}", flush=True)
    return found, median


def plain_loop(model: str) -> float:
    """Return the median of a plain loop over ONNX Runtime in a process of its own."""
    command = [sys.executable, "-c", LOOP, model, str(ROWS), str(WIDTH)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, more = (chain(n, Path(folder) / f"{n}.onnx") for n in (LAYERS, LAYERS + 1))
        print(f"the same file against itself, {options.runs} runs")
        same, medians, loops = [], [], []
        for n in range(options.runs):
            before = plain_loop(plain)
            found, median = verdict(plain, plain, options.seed + n)
            loops.append((before * plain_loop(plain)) ** 0.5)
            same.append(not found.differs)
            medians.append(median)
        print(f"a file with {1 / LAYERS:.0%} more work, {options.runs} runs")
        others = [verdict(plain, more, options.seed + n)[0] for n in range(options.runs)]
    right = [found.differs and found.ratio < 1 for found in others]
    ratio = statistics.median(own / loop for own, loop in zip(medians, loops, strict=True))
    loop, own = statistics.median(loops) * 1e6, statistics.median(medians) * 1e6
    ratios = statistics.median(1 / found.ratio for found in others)
    lines = {
        f"the same file: no difference in {sum(same)} of {len(same)} runs": all(same),
        f"{1 / LAYERS:.0%} more work: found in {sum(right)} of {len(right)} runs, median ratio {ratios:.3f}": (
            sum(right) >= FOUND * len(right)
        ),
        f"median {own:.0f} µs, plain loop {loop:.0f} µs: {ratio:.3f} times": abs(ratio - 1) <= BAR,
    }
    for text, met in lines.items():
        print(f"{text}: {'met' if met else 'MISSED'}")
    sys.exit(0 if all(lines.values()) else 1)


if __name__ == "__main__":
    main()
