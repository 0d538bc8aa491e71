"""Time until a model's graph is drawn, beside Netron: `make bench-view`. The same Chromium, the same files.

The page of torchport holds what Python has read; Netron reads the file in the browser. So its time is given twice: of
opening the page, and with `tp.report` before it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VIEWER = ROOT / "src" / "torchport" / "reports" / "viewer"
sys.path.insert(0, str(ROOT / "tests" / "shared"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="1000,5000,20000")
    parser.add_argument("--limit", type=float, default=120, help="seconds to wait for a picture")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{'nodes':>7} {'modules':>8} {'page':>8} {'report + page':>14} {'Netron':>9} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for nodes in map(int, given.nodes.split(",")):
            for modules in (True, False):
                print(row(Path(folder), nodes, modules, given.limit, given.rounds), flush=True)


def row(folder: Path, nodes: int, modules: bool, limit: float, rounds: int) -> str:
    from large_graphs import transformer

    import torchport as tp

    path = folder / f"{nodes}_{modules}.onnx"
    tp.graph.save(transformer(nodes, modules=modules), path)
    pages, reports, netrons = [], [], []
    for _ in range(rounds):  # in turn, so that what else the machine does hits both alike
        began = time.perf_counter()
        tp.report(path, path.with_suffix(".html"))
        reports.append(time.perf_counter() - began)
        pages.append(drawn(path.with_suffix(".html").as_uri(), "torchport", limit))
        if None not in netrons:
            netrons.append(in_netron(path, limit))
    page, report = statistics.median(pages), statistics.median(reports)
    netron = None if None in netrons else statistics.median(netrons)
    other = f"> {limit:.0f} s" if netron is None else f"{netron:.2f} s"
    ratio = f"{'> ' if netron is None else ''}{(netron or limit) / page:.1f}"
    named = "yes" if modules else "no"
    return f"{nodes:7} {named:>8} {page:6.2f} s {report + page:12.2f} s {other:>9} {ratio:>7}"


def in_netron(path: Path, limit: float) -> float | None:
    import netron

    netron.start(str(path), address=("127.0.0.1", 18099), browse=False)
    try:
        return drawn("http://127.0.0.1:18099/", "netron", limit)
    finally:
        netron.stop(("127.0.0.1", 18099))


def drawn(address: str, kind: str, limit: float) -> float | None:
    """Return the seconds until the picture is there; None if it is not within the limit."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("there is no Chromium: `make browser` installs it, as root")
    command = ["node", str(Path(__file__).with_suffix(".mjs")), str(VIEWER), chromium, address, kind, str(limit)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=True)
    milliseconds = json.loads(done.stdout)
    return None if milliseconds is None else milliseconds / 1000


if __name__ == "__main__":
    main()
