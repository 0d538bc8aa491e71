"""ONNX Runtime's C++ headers, which a kernel is compiled against. The onnxruntime wheel does not have them.

They are looked for where the user says, in a system install, and where `fetch` put them before. `fetch` takes them out
of Debian's package, without installing it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from torchport.errors import OptionError
from torchport.results import Record

VARIABLE = "TORCHPORT_ORT_INCLUDE"
HEADER = "onnxruntime_cxx_api.h"
LOWEST_API = 21
_PACKAGE, _SUITE = "libonnxruntime-dev", "trixie"  # ONNX Runtime 1.21; older Debians have no such package
_SYSTEM = ("/usr/include", "/usr/local/include", "/opt/onnxruntime/include", "/opt/homebrew/include")
_BELOW = (".", "onnxruntime", "onnxruntime/core/session", "include", "include/onnxruntime")
_REMEDY = "give --ort-include FOLDER, set TORCHPORT_ORT_INCLUDE, or let `torchport ops headers --fetch` get them"


@dataclasses.dataclass(frozen=True)
class Headers(Record):
    """A folder with ONNX Runtime's headers, where it came from, and the API they describe."""

    folder: str
    source: str
    api: int


def cache() -> Path:
    """Where torchport keeps what it fetched and built."""
    base = os.environ.get("TORCHPORT_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "torchport"
    )
    return Path(base)


def make_folder(folder: Path) -> None:
    """A folder of the cache."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fault = "" if os.access(folder, os.W_OK) else "it is read-only"
    except OSError as error:
        fault = str(error.strerror)
    if fault:
        raise OptionError(
            f"torchport cannot write to its cache '{folder}': {fault}",
            next_step="set TORCHPORT_CACHE to a folder of yours",
        )


def find(include: str | os.PathLike[str] | None = None) -> Headers:
    """The headers: of the folder given, else of the environment variable, the system, or what was fetched."""
    for named, source in ((include, "--ort-include"), (os.environ.get(VARIABLE), VARIABLE)):
        if named:
            found = _inside(Path(named), source)
            if found is None:
                raise OptionError(
                    f"'{named}' ({source}) has no {HEADER}", next_step="name the folder that holds the header"
                )
            return _checked(found)
    places = [*((Path(p), "the system") for p in _SYSTEM), (cache() / "onnxruntime", "fetched before")]
    for place, source in places:
        found = _inside(place, source)
        if found is not None and found.api >= LOWEST_API:
            return found
    raise OptionError("ONNX Runtime's C++ headers were not found", next_step=_REMEDY)


def _checked(found: Headers) -> Headers:
    if found.api < LOWEST_API:
        raise OptionError(
            f"the headers in {found.folder} are of API {found.api}; kernels are built against {LOWEST_API}",
            next_step=f"take ONNX Runtime 1.{LOWEST_API} or later",
        )
    return found


def _inside(folder: Path, source: str) -> Headers | None:
    for below in _BELOW:
        header = folder / below / HEADER
        if header.is_file():
            api = re.search(r"#define ORT_API_VERSION (\d+)", (header.parent / "onnxruntime_c_api.h").read_text())
            return Headers(str(header.parent.resolve()), source, int(api[1]) if api else 0)
    return None


def fetch() -> Headers:
    """Take them out of Debian's package, by the machine's own package sources, without installing it."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise OptionError(
                f"the headers are taken from a Debian package, and there is no {tool} here",
                next_step="get ONNX Runtime's archive for C++ and give --ort-include FOLDER",
            )
    target = cache() / "onnxruntime"
    make_folder(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        work = Path(scratch)
        options = _apart(work)
        _apt([*options, "update"], work)
        _apt([*options, "download", _PACKAGE], work)
        package = next(work.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(work / "unpacked")], check=True, capture_output=True)
        found = _inside(work / "unpacked" / "usr" / "include", _PACKAGE)
        if found is None:
            raise OptionError(f"the package {package.name} has no {HEADER}", next_step="give --ort-include FOLDER")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(found.folder, target)
    return dataclasses.replace(_checked(found), folder=str(target.resolve()), source="fetched")


def _apart(work: Path) -> list[str]:
    """Options that keep apt's lists and downloads in a folder of ours, with the suite that has the package."""
    for folder in ("state/lists/partial", "cache/archives/partial", "parts"):
        (work / folder).mkdir(parents=True)
    sources = work / "sources.list"
    sources.write_text("\n".join(_sources()) + "\n")
    return [
        "-o", f"Dir::Etc::sourcelist={sources}",
        "-o", f"Dir::Etc::sourceparts={work / 'parts'}",
        "-o", f"Dir::State={work / 'state'}",
        "-o", f"Dir::Cache={work / 'cache'}",
        "-o", "APT::Sandbox::User=",
        "-o", "APT::Get::List-Cleanup=0",
    ]  # fmt: skip


def _sources() -> list[str]:
    """The machine's own source of Debian packages, with another suite."""
    parts = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]
    for text in (f.read_text() for f in files if f.is_file()):
        for address, key in [*_one_line(text), *_paragraphs(text)]:
            return [f"deb {f'[signed-by={key}] ' if key else ''}{address} {_SUITE} main"]
    raise OptionError("no source of Debian packages is set up here", next_step="give --ort-include FOLDER")


def _one_line(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^deb\s+(\[[^\]]*\]\s+)?(\S+)\s+\w+\s+main\b", text, re.MULTILINE)
    return [(address, _key(options)) for options, address in found if address.rstrip("/").endswith("debian")]


def _paragraphs(text: str) -> list[tuple[str, str]]:
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([\w-]+):\s*(.+)$", paragraph, re.MULTILINE))
        address = fields.get("URIs", "").split()
        if address and address[0].rstrip("/").endswith("debian"):
            found.append((address[0], fields.get("Signed-By", "")))
    return found


def _key(options: str) -> str:
    named = re.search(r"signed-by=([^\s\]]+)", options)
    return named[1] if named else ""


def _apt(arguments: list[str], work: Path) -> None:
    done = subprocess.run(["apt-get", "-q", *arguments], cwd=work, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OptionError(f"apt-get {arguments[-1]} failed: {last}", next_step="give --ort-include FOLDER")
