"""Compare bytes of exports, JSON of every verb and every --help with golden.json: `make golden`.

A change of the code's structure must not change them. What must change is updated with `make golden UPDATE=1` in the
commit that changes it, with the reason in its message. Floating-point figures depend on the processor: if golden.json
was made on another one, or with other versions, figures are left out of the comparison, and a line says so.

The produced files stay in .golden/new, to be compared with those of another checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
PRODUCED = HERE.parents[1] / ".golden"
GROUPS = ("exports", "more exports", "verbs")

# figures of floating-point arithmetic, in JSON and in tables: 1.2e-07, 137.2, 0.999
FIGURE = re.compile(r"(?<![\w.])-?(?:\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+ dB|inf|nan)\b")
TIMES = re.compile(r'("(?:seconds|first_run|load_time)": )[-\d.e]+|\b\d+(?:\.\d+)? m?s\b')
OWN_LINES = re.compile(r"torchport/[\w/]+\.py:\d+")  # `ops show` names the file of a translation
FIGURES_OF_PROOF = ("max_abs", "max_rel", "min_cosine", "min_sqnr_db")


def exports(part: int) -> Iterator[tuple[str, bytes]]:
    """Half of the models, exported and saved; a refusal is its message."""
    import torch
    from models import CASES

    import torchport as tp

    for name in list(CASES)[part::2]:
        torch.manual_seed(0)
        model, args, options = CASES[name]()
        try:
            tp.export(model, args, output="model.onnx", **options)
        except tp.TorchportError as error:
            yield f"export: {name}", f"{type(error).__name__}: {error}".encode()
        else:
            yield f"export: {name}", Path("model.onnx").read_bytes()


def verbs() -> Iterator[tuple[str, bytes]]:
    """The JSON, the text or the refusal of each command, with its exit code, and what it saved."""
    from click.testing import CliRunner
    from commands import COMMANDS, prepare

    from torchport.cli.main import VERBS, cli

    runner = CliRunner()
    for verb in ["", *VERBS]:
        yield f"help: {verb}", runner.invoke(cli, [*verb.split(), "--help"]).output.encode()
    prepare()
    for command in COMMANDS:
        before = {p: p.stat().st_mtime_ns for p in Path().rglob("*.onnx")}
        done = runner.invoke(cli, command, standalone_mode=False)
        code = done.return_value if isinstance(done.return_value, int) else repr(done.exception)
        yield "command: " + " ".join(command), f"{code}\n{done.stdout}{done.stderr}".encode()
        for path in sorted(Path().rglob("*.onnx")):
            if path.stat().st_mtime_ns != before.get(path):
                yield f"saved by {' '.join(command)}: {path}", path.read_bytes()


def without_figures(produced: bytes) -> bytes:
    """Return what another processor must produce as well."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(produced)
        known = bool(model.producer_name and model.graph.node)
    except DecodeError:
        known = False
    if not known:
        return FIGURE.sub("#", produced.decode()).encode()
    for entry in model.metadata_props:
        if entry.key == "torchport.proof":
            proof: dict[str, Any] = json.loads(entry.value)
            entry.value = json.dumps({k: v for k, v in proof.items() if k not in FIGURES_OF_PROOF})
        elif entry.key == "torchport.versions":
            entry.value = ""
    return bytes(model.SerializeToString(deterministic=True))


def digests(group: str) -> dict[str, list[str]]:
    """Return for each item the digest of its bytes, and of its bytes without figures."""
    found: dict[str, list[str]] = {}
    made = {"exports": lambda: exports(0), "more exports": lambda: exports(1), "verbs": verbs}[group]()
    for name, produced in made:
        if not name.startswith(("export: ", "saved")):
            produced = OWN_LINES.sub("torchport/_.py", TIMES.sub(r"\1_", produced.decode())).encode()
        file = PRODUCED / "new" / re.sub(r"[^\w.,:=-]+", "_", name)[:150]
        file.write_bytes(produced)
        found[name] = [hashlib.sha256(data).hexdigest()[:16] for data in (produced, without_figures(produced))]
    return found


def machine() -> dict[str, str]:
    from importlib.metadata import version

    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    packages = ("torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "numpy")
    return {"cpu": cpu.group(1) if cpu else platform.processor(), **{name: version(name) for name in packages}}


def produce() -> dict[str, list[str]]:
    """Run the groups side by side, each in a process and a folder of its own."""
    shutil.rmtree(PRODUCED / "new", ignore_errors=True)
    (PRODUCED / "new").mkdir(parents=True)
    running = []
    for group in GROUPS:
        folder = PRODUCED / "work" / group.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for script in ("models.py", "commands.py"):  # beside what it makes: messages then name it without its folder
            shutil.copy(HERE / script, folder)
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "80", "PYTHONPATH": path}
        command = [sys.executable, "-P", str(HERE / "run.py"), "--group", group]
        running.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True))
    found: dict[str, list[str]] = {}
    for process in running:
        output = process.communicate()[0]
        if process.returncode:
            sys.exit("a group of golden items could not be produced")
        found |= json.loads(output.splitlines()[-1])
    return found


def compare(found: dict[str, list[str]]) -> int:
    kept = json.loads(GOLDEN.read_text())
    known: dict[str, list[str]] = kept["items"]
    which = 0 if kept["machine"] == machine() else 1
    if which:
        print(f"golden.json was made elsewhere ({kept['machine']}): figures are left out")
    changed = [name for name in known if name in found and known[name][which] != found[name][which]]
    rows = [
        *(("changed", name) for name in changed),
        *(("missing", name) for name in known if name not in found),
        *(("new", name) for name in found if name not in known),
    ]
    for kind, name in rows:
        print(f"{kind}: {name}")
    print(f"{len(known) - len(changed)} of {len(known)} items unchanged; what was produced is in .golden/new")
    return 1 if rows else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write golden.json")
    parser.add_argument("--group", choices=GROUPS, help="produce one group here and print its digests")
    options = parser.parse_args()
    if options.group:
        with contextlib.redirect_stdout(io.StringIO()):
            found = digests(options.group)
        print(json.dumps(found))
        return 0
    found = produce()
    if options.update:
        GOLDEN.write_text(json.dumps({"machine": machine(), "items": dict(sorted(found.items()))}, indent=1) + "\n")
        return 0
    return compare(found)


if __name__ == "__main__":
    sys.exit(main())
