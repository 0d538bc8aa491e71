"""What the route `rewrite` costs a model that does not need it: all routes beside `export` alone, side by side.

Each export runs in a process of its own, in turn; the ratio is of the medians and should be 1.

    make bench-rewrite
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 7


def measure(route: str) -> None:
    import torch
    from torch import nn

    import torchport as tp

    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(*(nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Linear(64, 10))).eval()
    started = time.perf_counter()
    tp.export(model, (torch.randn(2, 7, 64),), dynamic={"input": {0: "batch", 1: "length"}}, route=route)
    print(time.perf_counter() - started)


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    seconds: dict[str, list[float]] = {"auto": [], "export": []}
    for number in range(ROUNDS):
        for route in list(seconds)[:: 1 if number % 2 else -1]:
            done = subprocess.run([sys.executable, __file__, route], capture_output=True, text=True, check=True)
            seconds[route].append(float(done.stdout.splitlines()[-1]))
    auto, alone = (statistics.median(seconds[r]) for r in ("auto", "export"))
    print(f"all routes {auto:.2f} s, route export alone {alone:.2f} s: ratio {auto / alone:.3f}")


if __name__ == "__main__":
    main()
