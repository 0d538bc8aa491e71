"""Broken and hostile files against every verb, for as long as wanted: nothing but torchport's own errors comes out.

Bytes of small models are cut short, flipped, spliced and lied in. Worker processes with little memory try them; a
worker that dies, takes too long, runs out of memory or raises anything else has found a fault. Its input is kept.

    make fuzz SECONDS=600
    python benchmarks/fuzz.py --seconds 600 --seed 7 --keep /tmp/found
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "files"))

import hostile_models
import mutations
import trying


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    started = time.monotonic()
    with trying.Worker() as worker:
        found = [*trying.failures(worker, hostile_models.files()), *trying.failures(worker, mutations.truncations())]
        for name, content in mutations.endless(given.seed):
            if time.monotonic() - started > given.seconds:
                break
            found += trying.failures(worker, [(name, content)])
    for place, failure in enumerate(found):
        given.keep.mkdir(exist_ok=True)
        (given.keep / f"{place}.onnx").write_bytes(failure.content)
        print(f"{failure.name}: {failure.what} (kept as {given.keep / f'{place}.onnx'})")
    print(f"{worker.count} files, {len(found)} faults, {time.monotonic() - started:.0f} s")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
