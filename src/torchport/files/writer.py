"""Write a model to a file as one protobuf message: weights streamed, everything flushed to disk."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from torchport.errors import SaveError
from torchport.files.filesystem import sync
from torchport.files.protobuf import varint, write_back
from torchport.irtools.serialization import Sink, pour, reference, settled, streams, to_proto, weights

# A model written in full and flushed to disk, in a folder where nobody looks for it yet.
#
# Its weights go into the `.onnx` itself or into a data file beside it, tensor by tensor.

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
    proto, held = model_skeleton(model, target.name)
    skeleton.write_bytes(serialized(proto))
    _write_file(path, message_pieces(proto, held))
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
    _write_file(path, [serialized(proto)])
    return Draft(path, data)


def _write_file(path: Path, pieces: Iterable[Piece]) -> None:
    with path.open("xb") as file:
        write_pieces(pieces, file)
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


# A model as one protobuf message, its weights streamed into it.
#
# protobuf's own serializer wants all weights in memory, and then makes a second copy of them. Its format is
# simple enough (a key, a length, the content) to put the weights between the pieces it writes.

PROTOBUF_LIMIT = 2**31 - 1

Piece = bytes | ir.TensorProtocol


def write_inside(model: ir.Model, sink: Sink) -> None:
    """Write the model as one protobuf message, its weights streamed."""
    write_pieces(message_pieces(*model_skeleton(model, "")), sink)


def model_skeleton(model: ir.Model, location: str) -> tuple[ModelProto, list[ir.TensorProtocol]]:
    """The model without the weights of its main graph, which are references into `location`, and these."""
    held: list[ir.TensorProtocol] = []

    def hold(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not streams(tensor):
            return tensor
        held.append(tensor)
        return reference(tensor, location, 0)

    return write_back(model, to_proto(model, place=hold, nested=settled)), held


def message_pieces(proto: ModelProto, held: list[ir.TensorProtocol]) -> list[Piece]:
    """The message of a skeleton with `held` put back, as pieces to be written one after the other.

    The graph comes last: a file that was cut off anywhere is no whole model.

    Raises:
        SaveError: it takes more than protobuf allows.
    """
    rest = iter(held)
    initializers = [piece for tensor in proto.graph.initializer for piece in _initializer(tensor, rest)]
    del proto.graph.initializer[:]
    graph = serialized(proto.graph)
    proto.ClearField("graph")
    _keep_opsets_apart(proto)
    size = len(graph) + sum(len(p) if isinstance(p, bytes) else p.nbytes for p in initializers)
    head = serialized(proto) + _field(ModelProto, "graph", size) + graph
    if len(head) + size > PROTOBUF_LIMIT:
        raise _too_large(len(head) + size)
    return [head, *initializers]


def _keep_opsets_apart(proto: ModelProto) -> None:
    """Let another field, an empty one if need be, stand between the IR version and several opsets.

    OpenVINO looks at the first three fields of a file and takes it for no ONNX model where two of them are the same.
    """
    first = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
    between = [field for field, _ in proto.ListFields() if 1 < field.number < first]
    if len(proto.opset_import) > 1 and not between:
        proto.domain = ""


def write_pieces(parts: Iterable[Piece], sink: Sink) -> None:
    """Write pieces one after the other."""
    for piece in parts:
        if isinstance(piece, bytes):
            sink.write(piece)
        else:
            pour(piece, sink)


def serialized(message: Any) -> bytes:
    """The bytes of a protobuf message, the same each time.

    Raises:
        SaveError: it takes more than protobuf allows.
    """
    try:
        return bytes(message.SerializeToString(deterministic=True))
    except (ValueError, EncodeError) as error:
        raise _too_large(PROTOBUF_LIMIT + 1) from error


def _initializer(proto: TensorProto, rest: Iterator[ir.TensorProtocol]) -> list[Piece]:
    if proto.data_location != TensorProto.EXTERNAL:
        content = serialized(proto)
        return [_field(GraphProto, "initializer", len(content)) + content]
    tensor = next(rest)
    proto.ClearField("data_location")
    proto.ClearField("external_data")
    content = serialized(proto) + _field(TensorProto, "raw_data", tensor.nbytes)
    return [_field(GraphProto, "initializer", len(content) + tensor.nbytes) + content, tensor]


def _field(message: Any, name: str, length: int) -> bytes:
    """The key of a length-delimited field and the length, as protobuf encodes them."""
    return varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | 2) + varint(length)


def _too_large(size: int) -> SaveError:
    return SaveError(
        f"the model takes {size:,} bytes or more without a data file, protobuf allows {PROTOBUF_LIMIT:,}",
        next_step="save with external=True; large constants must be initializers for it to help",
    )
