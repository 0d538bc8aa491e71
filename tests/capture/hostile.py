"""Files that mean harm, made from honest ones: a pickle that leaves a marker, and archives with a member replaced."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path


class Payload:
    """Unpickling it makes the file `marker`: proof that code was run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def repacked(source: Path, target: Path, members: Mapping[str, bytes | None]) -> Path:
    """A copy of the archive with members replaced or added, or left out where None; names without the root folder."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        kept = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
        for name, data in {**kept, **members}.items():
            if data is not None:
                new.writestr(f"{root}/{name}", data)
    return target


def renamed(source: Path, target: Path, rename: Callable[[str], str], added: Mapping[str, bytes] | None = None) -> Path:
    """Write a copy of the archive with other names for its members, in full; return its path."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(rename(name), old.read(name))
        for name, data in (added or {}).items():
            new.writestr(name, data)
    return target
