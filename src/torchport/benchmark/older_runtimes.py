"""Other releases of ONNX Runtime, each in a virtual environment of its own that is kept in torchport's cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from torchport.engines.onnxruntime.headers import cache
from torchport.errors import OptionError

_RELEASE = re.compile(r"(onnxruntime)==(\d+(?:\.\d+){1,2})")


def environment_of(runtime: str) -> Path:
    """Return the Python of an environment with that release; it is made where there is none yet.

    Args:
        runtime: ``onnxruntime==1.21.0``.

    Raises:
        OptionError: the text is no release, or pip finds none for this Python.
    """
    found = _RELEASE.fullmatch(runtime.strip())
    if found is None:
        raise OptionError(
            f"'{runtime}' is no release of ONNX Runtime",
            where=f"--runtime {runtime}",
            next_step="write it as --runtime onnxruntime==1.21.0",
        )
    folder = cache() / "runtimes" / f"{found[1]}-{found[2]}-python{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = folder / "installed"
    if not done.exists():
        _install(runtime.strip(), folder, python)
        done.touch()
    return python


def _install(runtime: str, folder: Path, python: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted one left
    folder.parent.mkdir(parents=True, exist_ok=True)
    packages = [runtime, "numpy<2" if _before_numpy_2(runtime) else "numpy", "ml_dtypes"]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            lines = [line for line in (made.stderr or made.stdout).splitlines() if line.strip()]
            raise OptionError(
                f"{runtime} cannot be installed: {lines[-1].strip() if lines else 'pip gives no reason'}",
                where=f"--runtime {runtime}",
                next_step=f"name a release that has a wheel for Python {sys.version_info[0]}.{sys.version_info[1]}",
            )


def _before_numpy_2(runtime: str) -> bool:
    """Check that a release was built for numpy 1; its wheel does not say so."""
    version = runtime.partition("==")[2].split(".")
    return (int(version[0]), int(version[1])) < (1, 19)
