"""Libraries of ONNX Runtime kernels: checked before they are loaded into this process.

A library that was built against a newer API usually does not fail, it crashes. So each is registered once in a process
of its own, and only then here. That it went well is kept for the file's content.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort

from torchport.errors import EngineError
from torchport.operators import building, headers

ENTRY = "RegisterCustomOps"
_MACHINES = {3: "32-bit x86", 40: "32-bit ARM", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_TRIAL = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
try:
    options.register_custom_ops_library(sys.argv[1])
except Exception as error:
    sys.exit(f"refused: {error}")
"""


def check(given: str | os.PathLike[str]) -> Path:
    """The library's path, if ONNX Runtime can load it."""
    path = Path(given).resolve()
    if not path.is_file():
        raise EngineError(f"there is no operator library '{given}'", next_step="build it with `torchport ops build`")
    _check_kind(path)
    fault = _tried(path)
    if fault:
        raise EngineError(f"the operator library '{path.name}' cannot be loaded: {fault}", where=str(path))
    return path


def _check_kind(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(20)
    if sys.platform != "linux":
        return  # the trial tells
    if start[:4] != b"\x7fELF":
        raise EngineError(
            f"'{path.name}' is no library of this system", where=str(path), next_step="give a .so built for Linux"
        )
    order = "little" if start[5] == 1 else "big"
    machine = _MACHINES.get(int.from_bytes(start[18:20], order), "another machine")  # type: ignore[arg-type]
    if machine != platform.machine():
        raise EngineError(
            f"'{path.name}' was built for {machine}, this machine is {platform.machine()}",
            where=str(path),
            next_step="build it here with `torchport ops build`",
        )


def _tried(path: Path) -> str:
    """Why it cannot be registered; empty if it can, which is kept: a fault may be the machine's, and go away."""
    known = headers.cache() / "libraries" / f"{building.digest(path)}-{ort.__version__}.good"
    if known.is_file():
        return ""
    done = subprocess.run([sys.executable, "-c", _TRIAL, str(path)], capture_output=True, text=True)
    fault = _fault(done)
    if not fault:
        headers.make_folder(known.parent)
        known.touch()
    return fault


def _fault(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 0:
        return ""
    if done.returncode < 0 or "refused:" not in done.stderr:
        return (
            f"it crashes while it registers its operators with ONNX Runtime {ort.__version__}; it was probably built "
            "against a newer one (build against 1.21 or what you run)"
        )
    text = done.stderr.partition("refused:")[2].strip()
    if ENTRY in text:
        return f"it has no function {ENTRY}, so it is no library of ONNX Runtime operators"
    return text.splitlines()[0].rpartition(" : ")[2]
