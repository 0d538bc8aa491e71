"""What a session costs over bare ONNX Runtime and OpenVINO: `make bench-engines`.

Calls are interleaved in an order that is drawn anew each time, so that what else the machine does, and what the call
before left in the caches, hits all alike. Copies are looked for with an input of 64 MiB: a call that copied it would
take milliseconds more.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

import torchport as tp

CALLS = 10_000
LARGE_CALLS = 30
BAR = 6.0  # microseconds over bare ONNX Runtime
TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,8] x) => (float[n,8] y) { y = Relu(x) }'
SUM = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[1] y) { y = ReduceMax<keepdims = 1>(x) }'


def interleaved(runs: Mapping[str, Callable[[], Any]], calls: int) -> dict[str, float]:
    """Return the median of each in microseconds."""
    times: dict[str, list[int]] = {name: [] for name in runs}
    order = list(runs.items())
    for _ in range(calls):
        random.shuffle(order)
        for name, run in order:
            start = time.perf_counter_ns()
            run()
            times[name].append(time.perf_counter_ns() - start)
    return {name: statistics.median(values) / 1000 for name, values in times.items()}


def small(folder: Path) -> dict[str, Callable[[], Any]]:
    path = folder / "small.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    bare = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    session = tp.session(path)
    x, tensor, out = np.ones((4, 8), np.float32), torch.ones(4, 8), np.empty((4, 8), np.float32)
    return {
        "bare onnxruntime": lambda: bare.run(None, {"x": x}),
        "tp.session, by name": lambda: session.run({"x": x}),
        "tp.session, by position": lambda: session(x),
        "tp.session, torch tensors": lambda: session(tensor),
        "tp.session, own buffer": lambda: session.run({"x": x}, out={"y": out}),
    }


def large(folder: Path) -> dict[str, Callable[[], Any]]:
    path = folder / "large.onnx"
    onnx.save(onnx.parser.parse_model(SUM), path)
    bare = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    session = tp.session(path)
    x = np.ones(16 << 20, np.float32)
    tensor = torch.from_numpy(x)
    return {
        "bare onnxruntime": lambda: bare.run(None, {"x": x}),
        "tp.session, numpy": lambda: session(x),
        "tp.session, torch": lambda: session(tensor),
        "a copy of the input": lambda: x.copy(),
    }


def openvino_small(folder: Path) -> dict[str, Callable[[], Any]]:
    import openvino as ov

    compiled = ov.Core().compile_model(folder / "small.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    session = tp.session(folder / "small.onnx", "openvino")
    x = np.ones((4, 8), np.float32)
    return {"bare openvino": lambda: compiled({"x": x}), "tp.session, openvino": lambda: session.run({"x": x})}


def shown(title: str, found: Mapping[str, float]) -> float:
    """Print the medians beside the first one; returns the largest difference of the two plain calls."""
    base = next(iter(found.values()))
    print(title)
    for name, value in found.items():
        print(f"  {name:<28} {value:>10.2f} µs  {value - base:>+10.2f} µs")
    return max((value - base for name, value in found.items() if "by " in name), default=0.0)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        over = shown(f"a call of a small model, median of {CALLS:,}", interleaved(small(folder), CALLS))
        shown("an input of 64 MiB", interleaved(large(folder), LARGE_CALLS))
        shown(f"the same small model, median of {CALLS:,}", interleaved(openvino_small(folder), CALLS))
    print(f"bar: at most {BAR} µs over bare ONNX Runtime; {over:.2f}: {'met' if over <= BAR else 'MISSED'}")
    sys.exit(over > BAR)


if __name__ == "__main__":
    main()
