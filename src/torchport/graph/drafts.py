"""A model written in full and flushed to disk, in a folder where nobody looks for it yet.

Its weights go into the `.onnx` itself or into a data file beside it, tensor by tensor.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from torchport.graph import wire
from torchport.graph.locks import sync
from torchport.graph.unknown import write_back
from torchport.irtools.serialization import pour, reference, settled, streams, to_proto, weights

_SMALL = 1024  # smaller weights stay in the .onnx: shape arguments and scalars, which tools like to see
_PAGE_FROM = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Draft:
    """A model written in full, not yet where it belongs."""

    onnx: Path
    data: Path | None


def draft_inside(model: ir.Model, folder: Path, target: Path) -> tuple[Draft, Path]:
    """Write the whole model into one file.

    Returns:
        The draft, and a file for the checker: the same model whose weights are references into the draft, so
        that checking does not take the memory of the weights twice over.
    """
    path, skeleton = folder / target.name, folder / "check.onnx"
    proto, held = wire.skeleton(model, target.name)
    skeleton.write_bytes(wire.serialized(proto))
    _write_file(path, wire.pieces(proto, held))
    return Draft(path, None), skeleton


def draft_outside(model: ir.Model, folder: Path, target: Path) -> Draft:
    """Write the weights into a data file and the rest into an `.onnx` that refers to it."""
    large = {id(t): t for t in weights(model) if streams(t) and t.nbytes >= _SMALL}
    data, offsets = _write_data(large, folder, target.stem) if large else (None, {})

    def place(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if data is None or id(tensor) not in offsets:
            return settled(tensor)
        return reference(tensor, data.name, offsets[id(tensor)])

    proto = write_back(model, to_proto(model, place=place, nested=place))
    path = folder / target.name
    _write_file(path, [wire.serialized(proto)])
    return Draft(path, data)


def _write_file(path: Path, pieces: Iterable[wire.Piece]) -> None:
    with path.open("xb") as file:
        wire.write(pieces, file)
        sync(file)


def _write_data(large: dict[int, ir.TensorProtocol], folder: Path, stem: str) -> tuple[Path, dict[int, int]]:
    path = folder / "data"
    with path.open("xb") as file:
        data = _DataFile(file)
        offsets = {key: data.add(tensor) for key, tensor in large.items()}
        sync(file)
    return path.rename(folder / data.name(stem)), offsets


class _DataFile:
    """An external data file: aligned, equal tensors once, and named by its own sha256.

    64 bytes suit every vector instruction; large tensors start on a page, so that engines can map them.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._tensor_hash = hashlib.sha256()
        self._places: dict[bytes, int] = {}

    def add(self, tensor: ir.TensorProtocol) -> int:
        """Write the tensor, unless the same bytes are there already, and say at which offset they are."""
        end, before = self._file.tell(), self._hash.copy()
        self.write(bytes(-end % (4096 if tensor.nbytes >= _PAGE_FROM else 64)))
        offset = self._file.tell()
        self._tensor_hash = hashlib.sha256()
        pour(tensor, self)
        place = self._places.setdefault(self._tensor_hash.digest(), offset)
        if place != offset:
            self._file.seek(end)
            self._file.truncate()
            self._hash = before
        return place

    def write(self, data: Any, /) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._tensor_hash.update(data)

    def name(self, stem: str) -> str:
        return f"{stem}.{self._hash.hexdigest()[:16]}.data"
