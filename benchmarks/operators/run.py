"""Export every entry of PyTorch's operator database with torchport and with torch.onnx.export; print the table.

Results are kept in build/operators/results.jsonl and not asked for again, so that a run that was stopped goes on.

    make bench-operators                                what is missing, and the table
    python benchmarks/operators/run.py --only 'fft.*' --exporter torchport --redo all
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "shared"))
from database import find, names
from pool import Pool, main

if __name__ == "__main__":
    main(Pool(Path(__file__), names, find))
