"""Build C++ with CMake, against the headers and the library that are here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import onnxruntime

from torchport.engines.onnxruntime import headers

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
CPP = ROOT / "src" / "torchport" / "bundles" / "cpp"


def wheel_library() -> str:
    return str(Path(onnxruntime.__file__).parent / "capi")


def cmake(*args: object) -> str:
    """Run CMake; its words are the failure's."""
    environment = {
        **os.environ,
        "TORCHPORT_ORT_LIBRARY": wheel_library(),
        "TORCHPORT_ORT_INCLUDE": headers.find().folder,
    }
    done = subprocess.run(["cmake", *map(str, args)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
