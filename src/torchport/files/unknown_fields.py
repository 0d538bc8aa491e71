"""What a file says in fields that the installed onnx does not know, carried from loading to saving.

A newer onnx, or somebody's own tool, may have written them. protobuf keeps such fields, `onnx_ir` does not: so they go
along in the `meta` of the object they belong to, and with it through a cut or a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx_ir as ir
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto

from torchport.files.protobuf_scan import varint
from torchport.irtools.traversal import own_values

_KEY = "torchport.unknown_fields"
_VARINT, _EIGHT_BYTES, _BYTES, _GROUP, _END, _FOUR_BYTES = range(6)  # how protobuf writes a field


def remember(proto: ModelProto, model: ir.Model) -> None:
    """Attach the unknown fields of a message to the objects just made of it, its nodes in the same order."""
    for message, owner in _pairs(proto, model):
        fields = UnknownFieldSet(message)
        if len(fields):
            owner.meta[_KEY] = _encoded(fields)


def write_back(model: ir.Model, proto: ModelProto) -> ModelProto:
    """Put what was remembered into a message just made of the model."""
    for message, owner in _pairs(proto, model):
        # A small weight is written as the message it was read from, and has them
        if _KEY in owner.meta and not len(UnknownFieldSet(message)):
            message.MergeFromString(owner.meta[_KEY])
    return proto


def _pairs(proto: ModelProto, model: ir.Model) -> Iterator[tuple[Any, Any]]:
    """Each message and the object that stands for it: of the model, its graphs, functions, nodes, values, weights."""
    yield proto, model
    pending: list[tuple[GraphProto | FunctionProto, Any]] = [(proto.graph, model.graph)]
    pending += zip(proto.functions, model.functions.values(), strict=False)
    while pending:
        message, body = pending.pop()
        yield message, body
        yield from _values(message, body)
        for node, made in zip(message.node, body, strict=False):
            yield node, made
            for attribute in node.attribute:
                given = made.attributes.get(attribute.name)
                if given is not None:
                    yield attribute, given
                    pending += _inside(attribute, given)


def _values(message: GraphProto | FunctionProto, body: Any) -> Iterator[tuple[Any, Any]]:
    values = {value.name: value for value in own_values(body)}
    stated = [] if isinstance(message, FunctionProto) else [*message.input, *message.output]
    for info in (*stated, *message.value_info):
        if info.name in values:
            yield info, values[info.name]
    for tensor in message.initializer if isinstance(message, GraphProto) else ():
        value = values.get(tensor.name)
        if value is not None and value.const_value is not None:
            yield tensor, value.const_value


def _inside(attribute: Any, given: ir.Attr) -> Iterable[tuple[Any, Any]]:
    if given.type == ir.AttributeType.GRAPH and not given.is_ref():
        return [(attribute.g, given.as_graph())]
    if given.type == ir.AttributeType.GRAPHS and not given.is_ref():
        return zip(attribute.graphs, given.as_graphs(), strict=False)
    return []


def _encoded(fields: Any) -> bytes:
    return b"".join(_field(field) for field in fields)


def _field(field: Any) -> bytes:
    key = varint(field.field_number << 3 | field.wire_type)
    if field.wire_type == _VARINT:
        return key + varint(field.data)
    if field.wire_type == _BYTES:
        return key + varint(len(field.data)) + bytes(field.data)
    if field.wire_type == _GROUP:
        return key + _encoded(field.data) + varint(field.field_number << 3 | _END)
    return key + int(field.data).to_bytes(8 if field.wire_type == _EIGHT_BYTES else 4, "little")
