"""The folder that `torchport tune` writes: a model, and in ``tuned.json`` the engine and options it was fastest with.

best/
  tuned.json       the commit point: it names the model's file
  optimized.onnx   the model
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchport.errors import FileError, UnsafeFileError
from torchport.machine import cpu_name, usable_cpus
from torchport.results import Finding, Record

FILE = "tuned.json"
_FORM = 1


@dataclasses.dataclass(frozen=True)
class Tuned(Record):
    """The content of ``tuned.json``.

    Attributes:
        model: the model's file, in the same folder.
        engine: to run it in.
        threads: to compute with; None for the engine's own choice.
        settings: of the engine.
        variant: what was done to the model.
        lossy: the model was tuned with a tolerance, and is not proven at float32's.
        cpu: it was tuned on.
        cpus: that the process could use.
        version: of the engine.
        objective: what it was tuned for.
        speedup: times as fast as the model as given in ONNX Runtime.
        noise: the error as a part of the signal, in power, on the samples that it was held against.
        form: the version of this form.
    """

    model: str
    engine: str
    threads: int | None
    settings: Mapping[str, Any]
    variant: str
    lossy: bool
    cpu: str
    cpus: int
    version: str
    objective: str
    speedup: float
    noise: float
    form: int = _FORM

    def findings(self) -> tuple[Finding, ...]:
        """Return what differs between the machine it was tuned on and this one."""
        here = (cpu_name(), usable_cpus())
        if here == (self.cpu, self.cpus):
            return ()
        text = f"it was tuned on {self.cpu} with {self.cpus} CPUs; this is {here[0]} with {here[1]}"
        return (Finding(f"{text}: run `torchport tune` here to find what is fastest"),)


def is_tuned(path: str | os.PathLike[str]) -> bool:
    """Check that a path is a folder that `torchport tune` wrote."""
    return (Path(path) / FILE).is_file()


def read_tuned(folder: Path) -> Tuned:
    """Return what a folder's ``tuned.json`` holds.

    Raises:
        FileError: there is none, or it is broken.
        UnsafeFileError: it names a model outside the folder.
    """
    path = folder / FILE
    if not path.is_file():
        raise FileError(
            f"the folder has no {FILE}",
            where=str(folder),
            next_step="give an .onnx file, or a folder that `torchport tune` wrote",
        )
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        names = [field.name for field in dataclasses.fields(Tuned)]
        found = Tuned(**{name: stored[name] for name in names})
        _check(found)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileError(
            f"{FILE} cannot be read: {type(error).__name__} {error}",
            where=str(path),
            next_step="run `torchport tune` again",
        ) from error
    if Path(found.model).name != found.model or (folder / found.model).is_symlink():
        raise UnsafeFileError(
            f"{FILE} names a model outside its folder: {found.model!r}",
            where=str(path),
            next_step="run `torchport tune` again; do not use a folder that was changed by hand",
        )
    return found


def _check(found: Tuned) -> None:
    """Check the types that other code relies on.

    Raises:
        TypeError: one is wrong.
        ValueError: the form is of another version.
    """
    if found.form != _FORM:
        raise ValueError(f"its form is {found.form}, this torchport reads {_FORM}")
    texts = (found.model, found.engine, found.variant, found.cpu, found.version, found.objective)
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.settings, dict):
        raise TypeError("a field has a wrong type")
    if not (found.threads is None or isinstance(found.threads, int)):
        raise TypeError("'threads' is no number")
