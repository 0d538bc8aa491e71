"""What candidates in other processes need: a file of the model, and the libraries of its operators."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from torchport.capture.sources import import_file
from torchport.engines.custom_operators import library_paths
from torchport.engines.options import open_options
from torchport.engines.registry import find_engine
from torchport.errors import OptionError
from torchport.files import onnx_files
from torchport.irtools.metadata import find_origin


def check_seconds(seconds: float, *, none: bool = False) -> None:
    """Check that something can be measured for so long; `none` allows 0, for one run.

    Raises:
        OptionError: it cannot.
    """
    if not (0 < seconds < float("inf") or (none and seconds == 0)):
        raise OptionError(
            f"{seconds:g} seconds measure nothing",
            where=f"--seconds {seconds:g}, in Python seconds={seconds:g}",
            next_step="give a number above 0" + (", or 0 for a single run" if none else ""),
        )


def settings_by_engine(engines: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options that each engine has.

    Raises:
        OptionError: no engine has an option, or it has a value that cannot be, or that is not to be had here.
    """
    if not options:
        return {engine: {} for engine in engines}
    found = {e: {n: v for n, v in options.items() if find_engine(e).setting(n) is not None} for e in engines}
    unknown = {n: v for n, v in options.items() if not any(n in known for known in found.values())}
    for engine in engines:
        open_options(engine, settings={**found[engine], **unknown})
    return found


@contextlib.contextmanager
def model_file(model: str | os.PathLike[str] | ir.Model, loaded: ir.Model) -> Iterator[str]:
    """Give the path of a model; one in memory is written for the child processes to read."""
    if isinstance(model, (str, os.PathLike)):
        yield str(Path(model).resolve())
        return
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        yield str(onnx_files.save(loaded, Path(folder) / "model.onnx", check=False))


@dataclasses.dataclass(frozen=True)
class Common:
    """What all candidates of one call have in common.

    Attributes:
        libraries: operator libraries, by path.
        operators: Python files that define operators.
        seed: for weights that a PyTorch model draws.
        trust: open a PyTorch file that runs code when it is loaded.
    """

    libraries: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    seed: int = 0
    trust: bool = False

    @classmethod
    def read(cls, libraries: Sequence[str | os.PathLike[str]], *, seed: int, trust: bool) -> Common:
        """Take libraries as the user gives them. The Python files among them are run, in this process too."""
        operators = [Path(file).resolve() for file in libraries if str(file).endswith(".py")]
        for file in operators:
            import_file(file)
        paths = library_paths([p for p in libraries if not str(p).endswith(".py")])
        return cls(tuple(str(p.resolve()) for p in paths), tuple(map(str, operators)), seed, trust)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a candidate."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a candidate gave no outputs: fields of its row.

    Attributes:
        status: it refuses to open the model, or fails to run it.
        reason: in one line.
        node: the node at fault, where it is known.
        source: the Python line that made the node.
        next_step: what to do about it.
    """

    status: Literal["refuses", "fails"]
    reason: str
    node: str
    source: str
    next_step: str

    @classmethod
    def of(cls, facts: Mapping[str, Any], model: ir.Model) -> Failure:
        """Read what a candidate's process answered."""
        refuses = facts["refused"] == "EngineError" and facts["stage"] in ("prepare", "open")
        node = facts.get("node", "")
        origin = find_origin(model, node) if node else None
        return cls(
            "refuses" if refuses else "fails",
            facts["reason"],
            node,
            origin.source if origin else "",
            facts.get("next_step", ""),
        )

    @property
    def fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
