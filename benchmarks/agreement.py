"""Does every engine give PyTorch's answers on the forty untouched models of `bench-compare`?

    make bench-agreement
    python benchmarks/agreement.py --only 'timm/*'

Each model is exported and proven, and `tp.try_engines` runs the saved file in all engines that are here and in PyTorch,
on other inputs than the example's. An engine that does not give the answers must be named with the node at fault.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PATHS = [str(ROOT / part) for part in ("zoo", "shared", "compare")]
SEED = 1  # of the inputs; the example's is 0
LIMIT = 1800  # seconds for one model in all engines


def here(name: str) -> None:
    """In this process: a row of JSON for each engine."""
    sys.path[:0] = PATHS
    from measure import leaves
    from models import find

    import torchport as tp

    spec = find(name)
    model = spec.model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        tp.export(model, kwargs={**spec.arguments(spec.example, 0), **spec.fixed}, output=path)
        inputs = tuple(leaves(spec.arguments(spec.example, SEED)))
        for row in tp.try_engines(path, model, inputs=inputs, seconds=0.2, limit=600).rows:
            print(json.dumps(dataclasses.asdict(row)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run forty models in every engine.")
    parser.add_argument("--only", help="a pattern of names")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        here(options.here)
        return 0
    sys.path[:0] = PATHS
    from subjects import untouched

    counts: dict[str, dict[str, int]] = {}
    unnamed = 0
    for name in untouched(options.only):
        command = [sys.executable, __file__, "--here", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if not rows:
            unnamed += 1
            print(f"  {name}: no table: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}")
        for row in rows:
            by_status = counts.setdefault(row["engine"], {})
            by_status[row["status"]] = by_status.get(row["status"], 0) + 1
            if row["status"] not in ("right", "read, not run"):
                unnamed += not row["node"]
                place = f"node '{row['node']}' {row['source']}" if row["node"] else "NO NODE"
                print(f"  {name}: {row['engine']} {row['status']}: {place}: {row['reason'][:150]}")
        print(f"  {name}: {', '.join(row['engine'] + ' ' + row['status'] for row in rows)}", flush=True)
    for engine, by_status in counts.items():
        print(f"{engine}: {', '.join(f'{count} {status}' for status, count in by_status.items())}")
    print(f"{'met' if not unnamed else 'NOT met'}: {unnamed} without a node")
    return 1 if unnamed else 0


if __name__ == "__main__":
    sys.exit(main())
