"""Look at the machine: which versions, engines and CPU features are there, what is missing, how to get it."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Literal

from torchport.machine import cpu_features, usable_cpus
from torchport.process import environment_kept
from torchport.results import Record

if TYPE_CHECKING:
    from torchport.operators.registration import LeftOut

Status = Literal["ok", "missing", "wrong", "optional"]

_PACKAGES = (
    *("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-extensions", "numpy", "ml_dtypes"),
    *("click", "rich"),
)


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing looked at; `remedy` says how to get what is missing."""

    group: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Health(Record):
    """Everything `doctor` found."""

    checks: tuple[Check, ...]

    json_properties = ("healthy",)

    @property
    def healthy(self) -> bool:
        return all(c.status in ("ok", "optional") for c in self.checks)

    def __str__(self) -> str:
        signs = {"ok": "✓", "optional": "·", "missing": "✗", "wrong": "✗"}
        lines: list[str] = []
        for group in dict.fromkeys(c.group for c in self.checks):
            lines.append(group)
            for c in (c for c in self.checks if c.group == group):
                lines.append(f"  {signs[c.status]} {c.name:<14} {c.detail}".rstrip())
                if c.remedy:
                    lines.append(f"    {'':<14} get it: {c.remedy}")
        lines.append("all that is needed is here" if self.healthy else "something is missing, see ✗ above")
        return "\n".join(lines)


def doctor() -> Health:
    """Look at everything."""
    return Health((*_packages(), *_engines(), *_operators(), *_private_parts(), *_machine()))


def _packages() -> list[Check]:
    wanted = _requirements()
    checks = [Check("packages", "python", "ok", platform.python_version())]
    for name in _PACKAGES:
        need = wanted.get(name.lower().replace("_", "-"), "")
        try:
            found = version(name)
        except PackageNotFoundError:
            checks.append(Check("packages", name, "missing", f"needs {need}", f'pip install "{name}{need}"'))
            continue
        if need and not _satisfies(found, need):
            checks.append(Check("packages", name, "wrong", f"{found}, needs {need}", f'pip install "{name}{need}"'))
        else:
            checks.append(_importable(name, found))
    return checks


def _importable(name: str, found: str) -> Check:
    """A package can be there and still not load, e.g. for want of a system library."""
    try:
        with environment_kept():
            import_module(name.replace("-", "_"))
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything; saying so is the point
        return Check(
            "packages",
            name,
            "wrong",
            f"{found} does not load: {error}",
            f"pip install --force-reinstall {name}",
        )
    return Check("packages", name, "ok", found)


def _requirements() -> dict[str, str]:
    """What torchport's own metadata asks for: ``{"torch": ">=2.13"}``."""
    from re import match

    found: dict[str, str] = {}
    for text in requires("torchport") or ():
        parts = match(r"([A-Za-z0-9_.-]+)\s*(>=[0-9.]+)?", text)
        if parts:
            found[parts[1].lower().replace("_", "-")] = parts[2] or ""
    return found


def _satisfies(found: str, need: str) -> bool:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(p) for p in text.split("+")[0].split(".") if p.isdecimal())

    return numbers(found) >= numbers(need.removeprefix(">="))


def _engines() -> list[Check]:
    """Load each engine. Without any, or with an old one, the environment was made for another version of torchport."""
    from torchport.engines.registry import DEFAULT, engine_names, missing_engines

    absent = [Check("engines", n, "optional", "not installed", how) for n, how in missing_engines().items()]
    return [*(_engine(name) for name in engine_names() or (DEFAULT,)), *absent]


def _engine(name: str) -> Check:
    from torchport.engines.registry import find_engine
    from torchport.errors import EngineMissingError

    try:
        can = find_engine(name).capabilities()
    except EngineMissingError as error:
        return Check("engines", name, "wrong", error.what, error.next_step or "")
    return Check("engines", name, "ok", ", ".join(can.devices))


def _operators() -> list[Check]:
    """The operator library: its files that do not load, and the operators that this torch lacks."""
    try:
        from torchport.operators import library, registration
    except Exception as error:  # noqa: BLE001 - as above
        return [_broken("library", str(error))]
    entries = library.registered()
    count = len({entry.name for entry in entries})
    files = [_broken(one.name, one.reason) for one in library.broken_files()]
    lacking = _lacking("library", count, registration.left_out(entries))
    complete = Check("operators", "library", "ok", f"{count} operators, none left out")
    return [*files, *(lacking or [complete]), *_repairs()]


def _repairs() -> list[Check]:
    """The functions of torch that repairs replace and this torch lacks."""
    try:
        from torchport.capture import repairs
        from torchport.operators import registration
    except Exception as error:  # noqa: BLE001 - as above
        return [_broken("repairs", str(error))]
    entries = repairs.registered()
    return _lacking("repairs", len({entry.name for entry in entries}), registration.left_out(entries))


def _broken(name: str, reason: str) -> Check:
    remedy = "pip install --force-reinstall torchport, with the versions in constraints.txt"
    return Check("operators", name, "wrong", f"does not load: {reason}", remedy)


def _lacking(name: str, count: int, left_out: Sequence[LeftOut]) -> list[Check]:
    """One line a reason: ``2 of 312 left out: aten::cholesky, aten::qr are not in torch 2.15.0``."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(one.name.removesuffix(".default"))
    return [
        Check("operators", name, "optional", f"{len(n)} of {count} left out: {', '.join(n)} {_are(n)} {reason}")
        for reason, n in by_reason.items()
    ]


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _private_parts() -> list[Check]:
    """The private parts of torch and onnxscript that are not there, with the features that are off."""
    try:
        from torchport.capture.guards import UNREAD_GUARDS, reads_guards
        from torchport.torch_compat import parts
    except Exception as error:  # noqa: BLE001 - as above
        return [_broken("private parts", str(error))]
    checks = [
        Check("private parts", part.name, "optional", f"feature off: {part.feature}; {part.reason}")
        for part in parts.missing()
    ]
    if not reads_guards():
        checks.append(Check("private parts", "guards", "optional", UNREAD_GUARDS))
    if newer := parts.untested_release():
        checks.append(Check("private parts", "release", "optional", newer))
    there = len(parts.PARTS) - len(parts.missing())
    return [Check("private parts", "table", "ok", f"{there} of {len(parts.PARTS)} are there"), *checks]


def _machine() -> list[Check]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return [
        Check("machine", "cpu", "ok", f"{platform.machine()}, {usable_cpus()} cores, {_memory()}"),
        Check("machine", "features", "ok", ", ".join(cpu_features()) or "unknown"),
        Check("machine", "gpu", "optional", _gpu()),
        _headers(),
        Check("machine", "c++", "ok", compiler)
        if compiler
        else Check(
            "machine",
            "c++",
            "optional",
            "no compiler; needed only for kernels of your own",
            "apt install g++",
        ),
    ]


def _headers() -> Check:
    from torchport.engines.onnxruntime import headers
    from torchport.errors import OptionError

    try:
        found = headers.find()
    except OptionError as error:
        return Check(
            "machine", "ort headers", "optional", f"{error.what}; only for kernels of your own", error.next_step or ""
        )
    return Check("machine", "ort headers", "ok", f"{found.folder} ({found.source}), API {found.api}")


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB"


def _gpu() -> str:
    try:
        import torch
    except ImportError:
        return "unknown without torch"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none (none is needed)"
