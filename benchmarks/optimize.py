"""`torchport optimize` beside onnxslim and onnxsim: nodes left, right or wrong, time, peak memory.

Every model is given to each tool by its command line, in turn. Whether a result is right is checked here, by ONNX
Runtime on inputs of the benchmark's own, and not by torchport's proof. torchport's time is with verification; its
measurement of speed is left out (--no-measure), as the others have nothing like it. Peak memory is that of the process
and its children; the pages of a file that is mapped count as they do for the others.

    make bench-optimize                          all models, and one of 3 GB
    python benchmarks/optimize.py --only gpt llama --skip-large
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from torchport.process import silence_native

BAR_TIME, BAR_MEMORY = 1.5, 1.3
GIB = 1 << 30
_SIZES = {"batch": 2, "sequence": 12, "height": 128, "width": 96, "nodes": 50, "edges": 180, "past": 7}


class GptLayer(nn.Module):
    """A decoder layer with its attention and its Gelu written out, and a cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        total = k.shape[2]
        mask = torch.arange(total)[None, :] <= torch.arange(total - length, total)[:, None]
        scores = scores.masked_fill(~mask, -1e9)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.proj(y)
        h = self.up(self.norm2(x))
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        return x + self.down(h), k, v


class Gpt(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = 8000) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        start = past[0].shape[2]
        x = self.words(input_ids) + self.places(torch.arange(start, start + input_ids.shape[1]))
        present: list[torch.Tensor] = []
        for n, layer in enumerate(self.layers):
            x, k, v = layer(x, past[2 * n], past[2 * n + 1])
            present += [k, v]
        return self.head(self.norm(x)), present


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (p(y).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """RMS normalization, rotary embeddings, gated layers."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = 8000) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        self.register_buffer("inverse", 1 / 10000 ** (torch.arange(0, size, 2).float() / size))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        angle = torch.arange(input_ids.shape[1])[:, None].float() * self.inverse[None, :]
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def _gpt_inputs() -> tuple[Any, ...]:
    return torch.randint(0, 8000, (2, 5)), [torch.randn(2, 4, 7, 64) for _ in range(8)]


def models() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], Any]]:
    from models import MODELS, PROFILED

    sequence = {"input_ids": {0: "batch", 1: "sequence"}}
    own = {
        "gpt-cache": (Gpt, _gpt_inputs, None),
        "llama-like": (Llama, lambda: (torch.randint(0, 8000, (2, 9)),), sequence),
    }
    return {**MODELS, **own, **PROFILED}  # type: ignore[dict-item]


def export(name: str, kind: str, target: Path) -> None:
    """Write a model as torch's exporter gives it: dynamic, of fixed sizes, or by TorchScript."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    make, inputs, dynamic = models()[name]
    torch.manual_seed(0)
    model, args = make().eval(), inputs()
    auto = torch.export.Dim.AUTO
    if kind == "script":
        names = list(dynamic) if dynamic else None
        torch.onnx.export(
            model, args, target, dynamo=False, opset_version=17, input_names=names, dynamic_axes=dynamic, verbose=False
        )
        return
    shapes: Any = None
    if kind == "dynamic":
        shapes = {n: dict.fromkeys(axes, auto) for n, axes in (dynamic or {}).items()}
        if dynamic is None:
            shapes = ({0: auto, 1: auto}, [{0: auto, 2: auto}] * len(args[1]))
    torch.onnx.export(model, args, target, dynamo=True, dynamic_shapes=shapes, verbose=False, external_data=False)


def large(target: Path, gib: float) -> int:
    """Write a model of that many GiB of weights, beside it in a file; return the bytes of the weights."""
    width = 8192
    count = round(gib * GIB / (width * width * 4))
    rng = np.random.default_rng(0)
    nodes, tensors, offset = [], [], 0
    with target.with_suffix(".data").open("wb") as file:
        for n in range(count):
            weight = rng.standard_normal((width, width), dtype=np.float32) / 100
            file.write(weight.data)
            tensor = onnx.TensorProto(name=f"w{n}", data_type=1, dims=weight.shape, data_location=1)
            for key, value in (
                ("location", target.with_suffix(".data").name),
                ("offset", offset),
                ("length", weight.nbytes),
            ):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            offset += weight.nbytes
            nodes += [
                onnx.helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"m{n}"], name=f"matmul{n}"),
                onnx.helper.make_node("Identity", [f"m{n}"], [f"i{n}"], name=f"identity{n}"),
                onnx.helper.make_node("Relu", [f"i{n}"], [f"x{n + 1}"], name=f"relu{n}"),
            ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", width])
        for name in ("x0", f"x{count}")
    ]
    graph = onnx.helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    opset = [onnx.helper.make_opsetid("", 20)]
    target.write_bytes(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())
    return offset


# --- the tools --------------------------------------------------------------------------------------------------------


def command(tool: str, source: Path, target: Path) -> list[str]:
    if tool == "torchport":
        start = "from torchport.cli.main import main; main()"
        return [sys.executable, "-c", start, "optimize", "-q", "--no-measure", str(source), "-o", str(target)]
    more = ["--save-as-external-data"] if source.with_suffix(".data").exists() else []
    return [sys.executable, "-m", tool, str(source), str(target), *(more if tool == "onnxslim" else [])]


def run(tool: str, source: Path, target: Path, limit: float) -> dict[str, Any]:
    """Run a tool; return seconds, the peak of memory of its processes together, and what it said if it failed."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command(tool, source, target), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    try:
        said = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        said = f"longer than {limit:.0f} s"
    watcher.join()
    failed = process.returncode != 0 or not target.exists()
    return {"seconds": time.perf_counter() - started, "peak": peak[0], "failed": said.strip()[-200:] if failed else ""}


def _watch(process: subprocess.Popen[str], peak: list[int]) -> None:
    """Sum what a process and its children hold; pages that they share count once (PSS)."""
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_held, _family(process.pid))))
        time.sleep(0.05)


def _family(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return [pid]
    return [pid, *(p for child in text.split() for p in _family(int(child)))]


def _held(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def check(source: Path, target: Path) -> str:
    """Return "right", or how far the outputs of two models are apart on inputs of the benchmark's own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4

    def outputs(path: Path, feeds: dict[str, np.ndarray] | None) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feeds = _feeds(session) if feeds is None else feeds
        return session.run(None, feeds), feeds

    try:
        before, feeds = outputs(source, None)
    except Exception:  # noqa: BLE001 - the inputs made here are none that the model takes
        return "not checked"
    try:
        after, _ = outputs(target, feeds)
    except Exception as error:  # noqa: BLE001 - whatever a result does to the engine is the result
        return f"fails: {str(error).splitlines()[0][:60]}"
    for a, b in zip(before, after, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"wrong: {b.dtype}{b.shape} for {a.dtype}{a.shape}"
        far = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0) / max(np.abs(a).max(initial=0), 1e-6)
        if not far <= 1e-3:
            return f"wrong by {far:.1e}"
    return "right"


def _feeds(session: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    sizes: dict[str, int] = {}
    feeds = {}
    for given in session.get_inputs():
        shape = []
        for axis, dim in enumerate(given.shape):
            side = 96 if len(given.shape) == 4 and axis > 1 and "past" not in given.name else 3 + axis
            shape.append(dim if isinstance(dim, int) else sizes.setdefault(str(dim), _SIZES.get(str(dim), side)))
        if "int" in given.type:
            high = 2 if "mask" in given.name else 8 if given.name == "batch" else 40
            feeds[given.name] = rng.integers(0, high, shape)
        else:
            feeds[given.name] = rng.standard_normal(shape).astype(np.float32)
    if "attention_mask" in feeds:
        feeds["attention_mask"][:, 0] = 1
    return feeds


def nodes(path: Path) -> int:
    model = onnx.load(path, load_external_data=False)
    return len(model.graph.node) + sum(len(f.node) for f in model.functions)


# --- the tables -------------------------------------------------------------------------------------------------------

_FINE = ("right", "not checked")
TOOLS = ("torchport", "onnxslim", "onnxsim")


def one(name: str, source: Path, folder: Path, *, checked: bool = True, limit: float = 600) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "nodes": nodes(source)}
    for tool in TOOLS:
        target = folder / tool / "out.onnx"
        target.parent.mkdir(exist_ok=True)
        found = run(tool, source, target, limit)
        if not found["failed"]:
            found |= {"nodes": nodes(target), "verdict": check(source, target) if checked else ""}
        row[tool] = found
        for file in target.parent.iterdir():
            file.unlink()
    return row


def shown(row: dict[str, Any]) -> str:
    cells = []
    for tool in TOOLS:
        found = row[tool]
        text = f"fails: {found['failed'].splitlines()[-1][:20] if found['failed'] else ''}"
        if not found["failed"]:
            text = f"{found['nodes']:>4} {found['seconds']:5.1f} s {found['verdict'][:14]}"
        cells.append(text.ljust(24))
    return f"{row['model']:<26} {row['nodes']:>4}  " + " ".join(cells)


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return how the bars were met."""
    more, wrong, slow, ratios = [], [], [], []
    for row in rows:
        own, peers = (
            row["torchport"],
            [row[t] for t in TOOLS[1:] if not row[t]["failed"] and row[t]["verdict"] in _FINE],
        )
        if own["failed"] or own["verdict"] not in _FINE:
            wrong.append(row["model"])
            continue
        if any(own["nodes"] > peer["nodes"] for peer in peers):
            more.append(row["model"])
        if not row["onnxslim"]["failed"]:
            ratios.append(own["seconds"] / row["onnxslim"]["seconds"])
            if ratios[-1] > BAR_TIME:
                slow.append(f"{row['model']} {ratios[-1]:.1f}")
    middle = f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"
    return [
        f"nodes: more than a peer whose result is right on {len(more)} of {len(rows)} models {', '.join(more)}",
        f"wrong answers or failures: torchport {len(wrong)} {', '.join(wrong)}",
        *(
            f"wrong answers or failures: {t} {sum(bool(r[t]['failed']) or r[t]['verdict'] not in _FINE for r in rows)}"
            for t in TOOLS[1:]
        ),
        f"results that could not be checked: {sum(row['torchport'].get('verdict') == 'not checked' for row in rows)}",
        f"time: {middle} times onnxslim's by geometric mean; above {BAR_TIME} on {len(slow)}: {', '.join(slow)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="models to measure")
    parser.add_argument("--kinds", nargs="*", default=["dynamic", "static", "script"])
    parser.add_argument("--skip-large", action="store_true")
    parser.add_argument("--large", type=float, default=3.0, metavar="GIB")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temporary:
        folder = Path(temporary)
        names = options.only if options.only is not None else list(models())
        print(f"{'model':<26} nodes  " + " ".join(tool.ljust(24) for tool in TOOLS), flush=True)
        for name in names:
            for kind in options.kinds:
                source = folder / "model.onnx"
                try:
                    with silence_native():  # C++ prints the graph that it cannot export
                        export(name, kind, source)
                except Exception as error:  # noqa: BLE001 - torch's exporter is not what is measured
                    print(f"{name} {kind}: torch does not export it: {str(error).splitlines()[0][:60]}", flush=True)
                    continue
                rows.append(one(f"{name} {kind}", source, folder))
                print(shown(rows[-1]), flush=True)
        print(*verdicts(rows), sep="\n", flush=True)
        if not options.skip_large:
            source = folder / "large.onnx"
            weights = large(source, options.large)
            row = one("large", source, folder, checked=False, limit=1800)
            print(f"\n{options.large:g} GiB of weights: peak memory as a part of them (bar {BAR_MEMORY})")
            for tool in TOOLS:
                found = row[tool]
                print(
                    f"  {tool:<10} {found['peak'] / weights:.2f}  {found['seconds']:.0f} s  {found['failed'][:60]}",
                    flush=True,
                )
            rows.append(row)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
