"""Export the zoo with torchport and with torch.onnx.export, check both, and write its part of docs/coverage.md.

make bench-zoo                                      what is missing, and the table
python benchmarks/zoo/run.py --only 'timm/*' --exporter torchport
python benchmarks/zoo/run.py --redo missed          once more what was not right; `all` for everything
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "shared"))
from models import find, names
from runner import ROOT, Benchmark, main
from table import Section

HEAD = """## The zoo

Written by `make bench-zoo`; not to be edited by hand. The smallest model of every `timm` module and tiny
configurations of `transformers` architectures, with random weights, are exported with a dynamic batch (and sequence)
by `torchport` and by `torch.onnx.export(dynamo=True)` with the same dynamic dimensions. Each export runs in a process
of its own on two cores, with a limit of 120 s for either. The result is then checked by the benchmark, not by
torchport's proof: ONNX Runtime beside PyTorch at the example's sizes and at sizes that the exporter did not see,
batch 1 among them, with and without padding where the model takes a mask.
"""
LIBRARIES = ("timm", "transformers")

if __name__ == "__main__":
    section = Section("bench-zoo", HEAD, ("torch", "onnxruntime", *LIBRARIES), LIBRARIES, bar=0.97, bar_seconds=120)
    kept = ROOT / "build" / "zoo" / "results.jsonl"
    main(Benchmark(Path(__file__), names(), find, kept, section, seconds=120, absolute=1e-4))
