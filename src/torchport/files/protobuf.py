"""Protobuf below the messages of onnx: scan a file from length to length, and keep fields that onnx does not know."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto

from torchport.irtools.traversal import own_values

# The content of an ONNX file, split at the lengths protobuf wrote into it, and not looked into further.
#
# A message is a row of fields, each a key, a length and that many bytes. Going from length to length takes a fraction
# of the time and nearly none of the memory that making objects takes, and tells where every node and every value is.

_BYTES = 2  # how protobuf writes a field with a length: text, bytes, messages
_FIXED = {1: 8, 5: 4}  # and numbers of a fixed size
_FEW = 16  # places that are looked at one by one
_STRIDE = -7  # from one letter of a text to the next that is compared: names are often alike where they begin and end
_LONG = 128  # from here on a length takes more than one byte


class UnclearError(Exception):
    """Something that only the whole model can tell."""


def number(kind: Any, field: str) -> int:
    """The number of a message's field."""
    return int(kind.DESCRIPTOR.fields_by_name[field].number)


def with_length(field: int, *contents: bytes | memoryview) -> bytes:
    """A field with a length, as it stands in a file."""
    return b"".join((varint(field << 3 | _BYTES), varint(sum(map(len, contents))), *contents))


class SkimmedModel:
    """A model file of which only the graph's fields are told apart.

    Args:
        content: of the file.

    Raises:
        UnclearError, IndexError, ValueError: its graph is not in one piece, or is not written as protobuf writes one.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        view = memoryview(content)
        fields = list(_fields(content, 0, len(content)))
        graphs = [place for place in fields if place[0] == number(ModelProto, "graph")]
        if len(graphs) != 1:
            raise UnclearError
        _, _, begin, end = graphs[0]
        self.around = [view[start:end] for field, start, _, end in fields if field != number(ModelProto, "graph")]
        self._starts, self._ends = _rows(content, begin, end)

    def __getitem__(self, field: str) -> Packed:
        """What a field of the graph holds, in order."""
        found = number(GraphProto, field)
        return Packed(self.content, self._starts.get(found, array("I")), self._ends.get(found, 0))

    def others(self, *fields: str) -> list[memoryview]:
        """The graph's fields other than these, with their keys and lengths."""
        left = set(self._starts) - {number(GraphProto, field) for field in fields}
        view = memoryview(self.content)
        return [view[self._starts[field][0] : self._ends[field]] for field in left]


class Packed:
    """The messages of a repeated field, left as bytes.

    Args:
        content: of the file.
        starts: where each begins, with its key and length; one right after the other.
        end: where the last ends.
    """

    def __init__(self, content: bytes, starts: array[int], end: int) -> None:
        self._content = content
        self._starts = starts
        self._end = end

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> memoryview:
        size, start = read_varint(self._content, self._starts[index] + 1)
        return memoryview(self._content)[start : start + size]

    def __iter__(self) -> Iterator[memoryview]:
        return (self[index] for index in range(len(self)))

    def search(self, field: int, *, first: bool = False) -> Search:
        """Where texts stand in a field of these messages; `first` if each has it once, at its beginning."""
        return Search(self._content, self._starts, self._end, field, first=first)


class Search:
    """Looks for texts in a field of many messages at once, letter by letter.

    A text that is found may also stand elsewhere in the message: in a field inside of it, or in its data.
    """

    def __init__(self, content: bytes, starts: array[int], end: int, field: int, *, first: bool) -> None:
        """`first`: messages have the field once, as a rule at their very beginning, where it is looked for first."""
        self._content, self._starts, self._end = content, starts, end
        self._field = field
        begin = starts[0] if starts else end
        key = field << 3 | _BYTES
        self._every = np.frombuffer(content, np.uint8, end)
        heads = np.frombuffer(starts, np.uint32)
        heads = heads + 2 + (self._every[heads + 1] >= _LONG)  # where the first field of each message is
        if first and (self._every[heads] == key).all():
            self._places = heads
        else:
            self._places = np.flatnonzero(self._every[begin:-1] == key).astype(np.uint32) + np.uint32(begin)
        lengths = self._every[self._places + 1]
        self._endings = lengths * np.uint16(256) + self._every[(self._places + 1 + lengths).clip(max=max(end - 1, 0))]

    def holding(self, text: str) -> list[int]:
        """The messages in whose bytes the text is written as that field, perhaps deep inside."""
        encoded = text.encode(errors="surrogateescape")
        places = self._long(encoded) if len(encoded) >= _LONG else self._short(encoded)
        return list(dict.fromkeys(bisect.bisect_right(self._starts, place) - 1 for place in places))

    def _short(self, text: bytes) -> list[int]:
        found = self._places[self._endings == len(text) * 256 + text[-1]]
        found = found[found < self._end - len(text) - 1]
        for letter in range(1, len(text)):
            if len(found) <= _FEW:
                break
            place = letter * _STRIDE % len(text)
            found = found[self._every[found + (2 + place)] == text[place]]
        pattern = with_length(self._field, text)
        return [place for place in found.tolist() if self._content.startswith(pattern, place)]

    def _long(self, text: bytes) -> Iterator[int]:
        pattern = with_length(self._field, text)
        place = self._content.find(pattern, self._starts[0] if self._starts else self._end, self._end)
        while place >= 0:
            yield place
            place = self._content.find(pattern, place + 1, self._end)


def weight_name(tensor: memoryview) -> str:
    """The name in the bytes of a weight; its values are not touched."""
    names = [tensor[start:end] for field, _, start, end in _fields(tensor, 0, len(tensor)) if field == _NAME]
    return bytes(names[-1]).decode() if names else ""


_NAME = number(TensorProto, "name")


def _fields(content: bytes | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each field the number, where its key is, where its content begins, and where it ends."""
    while at < end:
        start = at
        key, at = read_varint(content, at)
        begin = at
        if key & 7 == _BYTES:
            size, begin = read_varint(content, at)
            at = begin + size
        elif key & 7 == 0:
            _, at = read_varint(content, at)
        elif key & 7 in _FIXED:
            at += _FIXED[key & 7]
        else:
            raise UnclearError
        yield key >> 3, start, begin, at
    if at != end:
        raise UnclearError


def _rows(content: bytes, at: int, end: int) -> tuple[dict[int, array[int]], dict[int, int]]:
    """Where the fields of a graph begin, by their numbers, and where the last of each ends.

    Raises:
        UnclearError: fields of one kind do not follow each other, or one has no length, which no graph's field lacks.
    """
    starts: dict[int, array[int]] = {}
    ends: dict[int, int] = {}
    last = -1
    while at < end:
        key, size = content[at], content[at + 1]
        if key != last:
            if key & 7 != _BYTES or key >= _LONG or key >> 3 in starts:
                raise UnclearError
            if last >= 0:
                ends[last >> 3] = at
            last = key
            add = starts.setdefault(key >> 3, array("I")).append
        add(at)
        at += 2 + size
        if size >= _LONG:
            size, at = read_varint(content, at - size - 1)
            at += size
    if at != end:
        raise UnclearError
    if last >= 0:
        ends[last >> 3] = end
    return starts, ends


# Numbers as protobuf writes them: seven bits a byte, the lowest first.


def varint(number: int) -> bytes:
    """The bytes of a number that is not negative.

    Example:
        >>> varint(300)
        b'\\xac\\x02'
    """
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(content: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number written at a place, and the place after it.

    Raises:
        IndexError: the content ends before it does.
        ValueError: it is longer than a number can be.

    Example:
        >>> read_varint(b"\\xac\\x02", 0)
        (300, 2)
    """
    number = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")


# Fields that the installed onnx does not know, kept from loading to saving. A newer onnx, or somebody's own tool, may
# have written them. protobuf keeps such fields, `onnx_ir` does not: so they go along in the `meta` of the object they
# belong to, and with it through a cut or a copy.

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
