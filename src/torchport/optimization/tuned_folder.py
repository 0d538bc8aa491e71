"""The folder of a search: the best model so far, and the state from which a search that was killed goes on.

best/
  tuned.json          the commit point: engine, options, and the name of the model's file
  optimized.onnx      the model
  .search/            while the search runs: the variants, and what was measured
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.engines.tuned import FILE, Tuned, is_tuned
from torchport.errors import SaveError
from torchport.files import onnx_files
from torchport.files.filesystem import write_atomically
from torchport.optimization.tuning_turns import Measured

SEARCH = ".search"
_STATE = "state.json"


class TunedFolder:
    """A folder that `tune` writes.

    Args:
        path: the folder; it is made if it is not there.
        key: identifies the search: one with another key is forgotten.

    Raises:
        SaveError: it holds other files, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], key: str) -> None:
        self.path, self._key = Path(path), key
        self.search = self.path / SEARCH
        check_folder(self.path)
        try:
            self.search.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.measured: dict[str, Measured] = self._read()
        self.resumed = len(self.measured)

    def _read(self) -> dict[str, Measured]:
        """Return what an earlier search of the same key measured; the files of another one are removed."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            stored = json.loads((self.search / _STATE).read_text(encoding="utf-8"))
            if stored["key"] == self._key:
                return {label: Measured(**fields) for label, fields in stored["measured"].items()}
        shutil.rmtree(self.search)
        self.search.mkdir()
        return {}

    def note(self, label: str, found: Measured) -> None:
        """Keep what was measured, for a search that goes on."""
        self.measured[label] = found
        fields = {name: dataclasses.asdict(one) for name, one in self.measured.items()}
        text = json.dumps({"key": self._key, "measured": fields})
        write_atomically(self.search / _STATE, lambda part: part.write_text(text, encoding="utf-8"))

    def variant(self, name: str) -> Path:
        """Return where the file of a variant stands."""
        folder = self.search / name.replace(" ", "_")
        folder.mkdir(exist_ok=True)
        return folder / "model.onnx"

    def save(self, model: Path, tuned: Tuned) -> None:
        """Save the best model so far. A reader finds the one before or this one, with the options of each."""
        target = self.path / tuned.model
        before = set(self.path.glob("*.onnx"))
        onnx_files.save(onnx_files.load(model), target, check=False)
        text = json.dumps(tuned.to_json(), indent=2) + "\n"
        write_atomically(self.path / FILE, lambda part: part.write_text(text, encoding="utf-8"))
        for other in before - {target}:
            _remove(other)

    def finish(self) -> None:
        """Remove the state of the search."""
        shutil.rmtree(self.search, ignore_errors=True)


def check_folder(path: Path) -> None:
    """Check that a folder is new, empty, or one that `tune` wrote.

    Raises:
        SaveError: it is none of these.
    """
    try:
        if path.is_file():
            raise SaveError(
                "the output is a folder, and here is a file", where=str(path), next_step="give another path"
            )
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise _unwritable(path, error) from error
    if names and not is_tuned(path) and SEARCH not in names:
        raise SaveError(
            f"the folder holds other files: {', '.join(sorted(names)[:3])}",
            where=str(path),
            next_step="give a folder that is new, empty, or was written by `torchport tune`",
        )


def _unwritable(path: Path, error: OSError) -> SaveError:
    return SaveError(
        f"the folder cannot be written: {error.strerror}", where=str(path), next_step="choose another path"
    )


def _remove(model: Path) -> None:
    """Remove a model, and its weights if they are beside it."""
    for path in (model, *model.parent.glob(f"{model.stem}.*.data")):
        with contextlib.suppress(OSError):
            path.unlink()


def file_bytes(path: Path) -> int:
    """Return the bytes of a model on disk, its weights included."""
    model = onnx_files.load(path)
    outside = {id(v.const_value): v.const_value for v in model.graph.initializers.values()}.values()
    return path.stat().st_size + sum(tensor.nbytes for tensor in outside if isinstance(tensor, ir.ExternalTensor))


def key_of(path: Path, options: Mapping[str, Any]) -> str:
    """Return what identifies a search: the model's bytes and the options that change what is measured."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode())
    model = onnx_files.load(path)
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            digest.update(piece)
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            stat = os.stat(value.const_value.path)
            digest.update(f"{value.const_value.path} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()
