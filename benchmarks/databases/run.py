"""Export PyTorch's modules and export examples and onnx-diagnostic's cases; write their part of docs/coverage.md.

make bench-databases                                what is missing, and the table
python benchmarks/databases/run.py --only 'modules/nn.CTCLoss/*' --redo all
python benchmarks/databases/run.py --exporter torch beside bare torch.onnx.export
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "shared"))
import table
from databases import find, names
from pool import ROOT, Pool, Results, main

HEAD = """## Databases

Written by `make bench-databases`; not to be edited by hand. The first 8 sample inputs of every module of PyTorch's
module database (eval mode, float32, with a dynamic first axis where PyTorch lets it vary), PyTorch's export examples
(as given, with a dynamic first axis, with every axis dynamic that PyTorch lets vary), and onnx-diagnostic's cases
(static, and with the dynamic shapes that they declare). The benchmark then checks the file, not torchport's proof:
plain ONNX Runtime beside PyTorch on the example, on other values, and on other sizes of the dynamic dimensions.
"""


def report(known: list[str], results: Results) -> None:
    versions = ("torch", "onnxruntime", "onnx-diagnostic")
    groups = ("modules", "examples", "onnx-diagnostic")
    bar = "at most 8 refused, each with a true reason, none wrong"
    section = table.Section("bench-databases", HEAD, versions, groups, bar, bar_seconds=120, every=False)
    table.write(ROOT / "docs" / "coverage.md", section, known, results)


if __name__ == "__main__":
    main(Pool(Path(__file__), names, find, report, seconds=120, exporters=("torchport",)))
