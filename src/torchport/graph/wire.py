"""A model as one protobuf message, its weights streamed into it.

protobuf's own serializer wants all weights in memory, and then makes a second copy of them. Its format is
simple enough (a key, a length, the content) to put the weights between the pieces it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from torchport.errors import SaveError
from torchport.graph.unknown import write_back
from torchport.graph.varints import varint
from torchport.irtools.serialization import Sink, pour, reference, settled, streams, to_proto

PROTOBUF_LIMIT = 2**31 - 1

Piece = bytes | ir.TensorProtocol


def write_inside(model: ir.Model, sink: Sink) -> None:
    """Write the model as one protobuf message, its weights streamed."""
    write(pieces(*skeleton(model, "")), sink)


def skeleton(model: ir.Model, location: str) -> tuple[ModelProto, list[ir.TensorProtocol]]:
    """The model without the weights of its main graph, which are references into `location`, and these."""
    held: list[ir.TensorProtocol] = []

    def hold(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not streams(tensor):
            return tensor
        held.append(tensor)
        return reference(tensor, location, 0)

    return write_back(model, to_proto(model, place=hold, nested=settled)), held


def pieces(proto: ModelProto, held: list[ir.TensorProtocol]) -> list[Piece]:
    """The message of a skeleton with `held` put back, as pieces to be written one after the other.

    Raises:
        SaveError: it takes more than protobuf allows.
    """
    rest = iter(held)
    initializers = [piece for tensor in proto.graph.initializer for piece in _initializer(tensor, rest)]
    del proto.graph.initializer[:]
    graph = serialized(proto.graph)
    proto.ClearField("graph")
    size = len(graph) + sum(len(p) if isinstance(p, bytes) else p.nbytes for p in initializers)
    head = serialized(proto) + _field(ModelProto, "graph", size) + graph
    if len(head) + size > PROTOBUF_LIMIT:
        raise _too_large(len(head) + size)
    return [head, *initializers]


def write(parts: Iterable[Piece], sink: Sink) -> None:
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
