"""What a proven export costs beside a bare one.

For each model, a process of its own runs `torch.onnx.export(dynamo=True)` without verification or `torchport.export`
with its proof, in turn, several rounds; the ratio of the medians is what counts, as absolute times mean nothing on a
shared machine. Peak memory is the process's own high-water mark.

    make bench-export                    all figures
    python benchmarks/export.py --rounds 3 --only resnet18 --skip-large
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BAR_TIME, BAR_MEMORY, BAR_HELP, BAR_LARGE = 1.3, 1.2, 0.2, 1.3
GIB = 1 << 30


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(who: str, name: str) -> None:
    """Run one export in this process and print its seconds and peak memory."""
    import logging
    import warnings

    import torch
    from models import MODELS

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    make, inputs, dynamic = MODELS[name]
    model, args = make().eval(), inputs()
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "model.onnx")
        started = time.perf_counter()
        if who == "torchport":
            import torchport

            exported = torchport.export(model, args, output=target, dynamic=dynamic)
            assert exported.proof.passed
        else:
            # AUTO, as named ones raise on any relation, such as a picture's sides that are multiples of 32
            shapes = {n: dict.fromkeys(axes, torch.export.Dim.AUTO) for n, axes in dynamic.items()}
            torch.onnx.export(model, args, target, dynamo=True, dynamic_shapes=shapes, verbose=False)
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "peak": peak()}))


def large(gib: float) -> None:
    """Export a model of that many GiB of weights; print the weights' and the extra peak memory."""
    import torch
    from torch import nn

    import torchport

    width = 8192
    layers = round(gib * GIB / (width * width * 4))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    args = (torch.randn(2, width),)
    with torch.no_grad():
        model(*args)
    weights = sum(p.nbytes for p in model.parameters())
    before = _resident()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        exported = torchport.export(
            model, args, output=os.path.join(folder, "large.onnx"), dynamic={"input": {0: "batch"}}
        )
        assert exported.proof.passed
    print(json.dumps({"weights": weights, "extra": peak() - before}))


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def child(*args: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(args)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(names: list[str], rounds: int) -> bool:
    print(f"{'model':<20}{'torch':>9}{'torchport':>11}{'time ratio':>12}{'memory ratio':>14}")
    times, memories = [], []
    for name in names:
        runs = [(child("--one", "torch", name), child("--one", "torchport", name)) for _ in range(rounds)]
        bare, ours = (statistics.median(r[i]["seconds"] for r in runs) for i in (0, 1))
        time_ratio = statistics.median(o["seconds"] / b["seconds"] for b, o in runs)
        memory_ratio = statistics.median(o["peak"] / b["peak"] for b, o in runs)
        times.append(time_ratio)
        memories.append(memory_ratio)
        print(f"{name:<20}{bare:>8.1f}s{ours:>10.1f}s{time_ratio:>12.2f}{memory_ratio:>14.2f}", flush=True)
    ok = max(times) <= BAR_TIME and max(memories) <= BAR_MEMORY
    print(f"worst: time {max(times):.2f} (bar {BAR_TIME}), memory {max(memories):.2f} (bar {BAR_MEMORY})")
    return ok


def start_up(rounds: int) -> bool:
    command = [str(Path(sys.executable).with_name("torchport")), "--help"]
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    print(f"torchport --help: {median:.3f} s (bar {BAR_HELP})")
    return median <= BAR_HELP


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, metavar=("WHO", "MODEL"))
    parser.add_argument("--large", type=float, metavar="GIB")
    parser.add_argument("--only", action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-large", action="store_true")
    options = parser.parse_args()
    if options.one:
        return one(*options.one)
    if options.large:
        return large(options.large)
    from models import MODELS

    results = [start_up(10), compare(options.only or list(MODELS), options.rounds)]
    if not options.skip_large:
        found = child("--large", "3")
        ratio = found["extra"] / found["weights"]
        print(f"3 GiB of weights: peak memory beyond the model {ratio:.2f} times the weights (bar {BAR_LARGE})")
        results.append(ratio <= BAR_LARGE)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
