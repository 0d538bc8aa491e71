"""Libraries of ONNX Runtime kernels: checked before they are loaded, and compiled once."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from torchport.engines.custom_operators import digest
from torchport.engines.onnxruntime import headers
from torchport.errors import EngineError, OptionError

# Libraries of ONNX Runtime kernels: checked before they are loaded into this process.
#
# A library that was built against a newer API usually does not fail, it crashes. So each is registered once in a
# process of its own, and only then here. That it went well is kept for the file's content.

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
        raise OptionError(f"there is no operator library '{given}'", next_step="build it with `torchport ops build`")
    _check_kind(path)
    fault = _tried(path)
    if fault:
        raise EngineError(
            f"the operator library '{path.name}' cannot be loaded: {fault}",
            where=str(path),
            next_step="build it again for this machine and this ONNX Runtime: `torchport ops build`",
        )
    return path


def _check_kind(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(20)
    if sys.platform != "linux":
        return  # the trial tells
    if start[:4] != b"\x7fELF":
        raise OptionError(
            f"'{path.name}' is no library of this system", where=str(path), next_step="give a .so built for Linux"
        )
    order = "little" if start[5] == 1 else "big"
    machine = _MACHINES.get(int.from_bytes(start[18:20], order), "another machine")  # type: ignore[arg-type]
    if machine != platform.machine():
        raise OptionError(
            f"'{path.name}' was built for {machine}, this machine is {platform.machine()}",
            where=str(path),
            next_step="build it here with `torchport ops build`",
        )


def _tried(path: Path) -> str:
    """Why it cannot be registered; empty if it can, which is kept: a fault may be the machine's, and go away."""
    known = headers.cache() / "libraries" / f"{digest(path)}-{ort.__version__}.good"
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


# Compile kernels for ONNX Runtime, once.
#
# A library is kept under a key made of its command; beside it stands what went into it (the source, every header it
# includes), so that a change of any of them builds it anew.

OWN_HEADERS = Path(__file__).parent / "kernels"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared")


def compiler() -> list[str]:
    """The command of the C++ compiler: of the environment variable CXX ("ccache g++"), else what is installed."""
    named = shlex.split(os.environ.get("CXX", ""))
    named = named or list(filter(None, map(shutil.which, ("c++", "g++", "clang++"))))[:1]
    if not named or shutil.which(named[0]) is None:
        raise OptionError(
            f"there is no C++ compiler{f' {named[0]}' if named else ''} here", next_step="apt install g++, or set CXX"
        )
    return named


def build(
    sources: Sequence[str | os.PathLike[str]],
    *,
    flags: Sequence[str] = (),
    include: str | os.PathLike[str] | None = None,
    again: bool = False,
) -> Path:
    """The library of these sources, compiled unless it is there already.

    Args:
        sources: C++ files, absolute or from the current folder.
        flags: for the compiler, after ours.
        include: the folder of ONNX Runtime's headers; else they are looked for.
        again: compile even if nothing changed.
    """
    files = [Path(s).resolve() for s in sources]
    for file in files:
        if not file.is_file():
            raise OptionError(f"there is no kernel source '{file}'", next_step="name a C++ file beside your operator's")
    found = headers.find(include)
    command = [*compiler(), *_FLAGS, f"-I{OWN_HEADERS}", f"-isystem{found.folder}", *map(str, files), *flags]
    folder = headers.cache() / "kernels" / hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
    library = folder / f"lib{files[0].stem}.so"
    if again or not _fresh(folder, library):
        _compile(command, folder, library)
    return library


def _fresh(folder: Path, library: Path) -> bool:
    record = folder / "record.json"
    if not (library.is_file() and record.is_file()):
        return False
    went_in = json.loads(record.read_text())
    return all(Path(path).is_file() and digest(path) == known for path, known in went_in.items())


def _compile(command: Sequence[str], folder: Path, library: Path) -> None:
    """Into a folder of its own first: two processes that build the same leave one whole library."""
    headers.make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        work = Path(scratch)
        made = work / library.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            own = library.stem.removeprefix("lib")
            raise OptionError(
                f"the kernel {own} does not compile: {_first_error(done.stderr)}",
                where=_place(done.stderr),
                next_step="the compiler's own words:\n" + "\n".join(done.stderr.strip().splitlines()[:20]),
            )
        needed = subprocess.run([*command, "-M"], capture_output=True, text=True, check=True)
        names = dict.fromkeys(_names(needed.stdout))
        record = {name: digest(name) for name in names if not name.startswith("/usr/")}
        (work / "record.json").write_text(json.dumps(record, indent=1))
        folder.mkdir(exist_ok=True)
        os.replace(made, library)
        os.replace(work / "record.json", folder / "record.json")


def _names(text: str) -> list[str]:
    """The files of rules for make: a space in a name has a backslash before it, a dollar stands twice."""
    rules = [rule.partition(": ")[2] for rule in text.replace("\\\n", " ").splitlines()]
    found = re.findall(r"(?:\\.|[^\s\\])+", " ".join(rules))
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in found]


def _first_error(text: str) -> str:
    found = re.search(r"error: (.+)", text)
    return found[1] if found else (text.strip().splitlines() or ["no message"])[-1]


def _place(text: str) -> str | None:
    found = re.search(r"^(.+:\d+):\d+: (?:fatal )?error:", text, re.MULTILINE)
    return found[1] if found else None
