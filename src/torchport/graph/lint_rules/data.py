"""The data of every tensor is there, inside the folder, and as much as its shape says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import ModelProto

from torchport.errors import UnsafeFileError
from torchport.files.external_data import data_errors
from torchport.graph.faults import Fault


def faults(proto: ModelProto, folder: Path | None) -> Iterator[Fault]:
    for name, error in data_errors(proto, folder):
        rule = "unsafe-data" if isinstance(error, UnsafeFileError) else "missing-data"
        yield Fault("error", rule, f"tensor '{name}': {error.what}", error.next_step or "", tensor=name)
