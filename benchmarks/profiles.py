"""What `torchport profile` says, held against three other sources: part of `make bench-engines`.

- The kernels add up to the run's time: within 5% of a run without counters.
- The top three nodes are those of ONNX Runtime's own profile, made here without torchport. Where nodes take the same
  time within 5%, or are one operator on one shape, as in the layers of a transformer, any of them may be among the
  three.
- The Python line of every node is right: PyTorch runs the model, and for each call of an operator the line is taken
  from the interpreter's stack, by module. Nothing of torchport's code for origins is used. Of a call in a helper that
  `forward` calls, both lines are right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from models import PROFILED
from torch.overrides import TorchFunctionMode

import torchport as tp

HERE = str(Path(__file__).with_name("models.py"))
BAR = 0.05
ALIKE = 0.05
# Operators of the exported program whose Python function has another name; the rest are called alike.
CALLED = {
    "_native_batch_norm_legit_no_training": ("batch_norm",),
    "_to_copy": ("bool",),
    "unsqueeze": ("__getitem__",),
    "select": ("__getitem__",),
    "slice": ("__getitem__",),
    "sym_size": ("shape",),
    "convolution": ("conv2d",),
    "view": ("reshape", "flatten"),
}


def _lines_from(frame: FrameType | None) -> Iterator[int]:
    """Give the lines of models.py on the stack, from the innermost to the `forward` that it belongs to."""
    while frame is not None and frame.f_code.co_filename != HERE:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename == HERE:
        yield frame.f_lineno
        if frame.f_code.co_name == "forward":
            return
        frame = frame.f_back


class Lines(TorchFunctionMode):
    """Notes the line of this folder's models.py at which each function of torch is called, by module."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[str] = [""]
        self.found: dict[tuple[str, str], set[int]] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = function.__self__.__name__  # type: ignore[attr-defined]
        self.found.setdefault((self.modules[-1], name), set()).update(_lines_from(sys._getframe(1)))
        return function(*args, **(kwargs or {}))

    @contextmanager
    def following(self, model: torch.nn.Module) -> Iterator[None]:
        """Keep the path of the module that is running."""
        hooks = []
        for path, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(lambda *_, path=path: self.modules.append(path)))
            hooks.append(module.register_forward_hook(lambda *_: self.modules.pop() and None))
        yield
        for hook in hooks:
            hook.remove()


def lines_of(model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> dict[tuple[str, str], set[int]]:
    lines = Lines()
    with torch.no_grad(), lines.following(model), lines:
        model(*args)
    return lines.found


def wrong_lines(file: Path, known: dict[tuple[str, str], set[int]]) -> tuple[int, list[str]]:
    """Return the number of nodes with an origin in models.py, and those whose line PyTorch did not run there."""
    checked, wrong = 0, []
    for node in ir.load(file).graph.all_nodes():
        source, module = (node.metadata_props.get(f"torchport.{key}", "") for key in ("source", "module"))
        path, _, line = source.rpartition(":")
        if not path.endswith("models.py"):
            continue
        operator = node.metadata_props.get("torchport.operator", "").split(".")[1:2]
        name = operator[0] if operator else ""
        names = {name, *CALLED.get(name, ()), f"__{name}__", f"__r{name}__"}
        lines = set().union(*(known.get((module, n), set()) for n in names))
        checked += 1
        if int(line) not in lines:
            wrong.append(f"{node.name} ({name} in '{module}'): line {line}, PyTorch ran {sorted(lines)}")
    return checked, wrong


def bare_times(
    file: Path, feeds: dict[str, np.ndarray], runs: int, threads: int | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the kernels of ONNX Runtime's own profile: the quickest time in microseconds, and operator with shapes."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads or 0
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/p"
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        for _ in range(runs):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for event in events:
        if event["cat"] == "Node":
            name = event["name"].removesuffix("_kernel_time")
            times.setdefault(name, []).append(event["dur"])
            kinds[name] = f"{event['args']['op_name']} {event['args']['input_type_shape']}"
    return {name: float(min(values)) for name, values in times.items()}, kinds


def top_three(found: Any, bare: dict[str, float], kinds: dict[str, str]) -> tuple[bool, list[str], list[str]]:
    ours = [node.kernel for node in found.nodes[:3]]
    theirs = sorted(bare, key=lambda name: -bare[name])[:3]
    least = bare[theirs[-1]] * (1 - ALIKE)
    known = {kinds[name] for name in theirs}
    return all(bare.get(name, 0.0) >= least or kinds.get(name) in known for name in ours), ours, theirs


def measured(name: str, folder: Path, seconds: float, threads: int | None) -> bool:
    make, inputs, dynamic = PROFILED[name]
    torch.manual_seed(0)
    model, args = make().eval(), inputs()
    file = folder / f"{name}.onnx"
    if not file.exists():
        tp.export(model, args, output=file, dynamic=dynamic)
    feeds = dict(zip(dynamic, (a.numpy() for a in args), strict=True))
    found = tp.profile(file, inputs=feeds, seconds=seconds, threads=threads, compare_threads=False)
    off = abs(1 - found.accounted)
    same, ours, theirs = top_three(found, *bare_times(file, feeds, 20, threads))
    checked, wrong = wrong_lines(file, lines_of(model, args))
    named = sum(bool(node.source) for node in found.nodes)
    inside = all(node.source in node.sources for node in found.nodes if node.source)
    wrong += [f"a line that is not the model's: {n.source}" for n in found.lines if "models.py:" not in n.source]
    print(f"{name}: a run {found.run_seconds * 1e3:.1f} ms, counted {found.profiled_seconds * 1e3:.1f} ms")
    print(f"  kernels add up to {found.accounted:.1%} of the run: {'met' if off <= BAR else 'MISSED'}")
    print(f"  top three: {', '.join(ours)}; ONNX Runtime's: {', '.join(theirs)}: {'met' if same else 'MISSED'}")
    print(f"  lines: {checked - len(wrong)} of {checked} nodes right, {named} of {len(found.nodes)} kernels have one")
    for text in wrong[:5]:
        print(f"    {text}")
    return off <= BAR and same and not wrong and checked > 0 and inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(PROFILED), help="which of them")
    parser.add_argument("--folder", type=Path, help="keeps the exported models")
    parser.add_argument("--threads", type=int, help="1 where other programs keep the other cores busy")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or Path(place)
        met = [measured(name, folder, options.seconds, options.threads) for name in options.models.split(",")]
    print(f"bars: {sum(met)} of {len(met)} models meet all three")
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
