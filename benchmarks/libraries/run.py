"""Export models of other people's libraries with torchport and with torch.onnx.export, check both, and write their part
of docs/coverage.md.

    make bench-libraries                                what is missing, and the table
    python benchmarks/libraries/run.py --only 'monai/*' --exporter torchport
    python benchmarks/libraries/run.py --redo missed    once more what was not right; `all` for everything

What an export said stands in build/libraries/logs, every attempt included.
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "shared"))
from models import find, names, packages
from runner import Benchmark, main
from table import Section

HEAD = """## Libraries

Written by `make bench-libraries`; not to be edited by hand. Models of {packages} packages of other people, small by
configuration and with random weights, are exported with the dynamic dimensions that their users ask for (batch,
height and width, length, nodes and edges) by `torchport` and by `torch.onnx.export(dynamo=True)` with the same
dynamic dimensions. Each export runs in a process of its own on two cores, with a limit of 300 s and 8 GiB for either.
The result is then checked by the benchmark, not by torchport's proof: plain ONNX Runtime beside PyTorch at the
example's sizes and at sizes that the exporter did not see, with other inputs each time.
"""

if __name__ == "__main__":
    known = sorted(packages(), key=str.lower)
    versions = ("torch", "onnxruntime", *(distribution(p).name for p in known))
    head = HEAD.format(packages=len(known))
    section = Section("bench-libraries", head, versions, (), bar=0.95, bar_seconds=120)
    main(
        Benchmark(
            Path(__file__),
            names(),
            find,
            Path(__file__).with_name("results.jsonl"),
            section,
            seconds=300,
            absolute=1e-5,
        )
    )
