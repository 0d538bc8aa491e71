"""Small models, and their bytes spoiled in every way that a seed leads to."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from made_models import good, node, proto_of, value
from onnx import ModelProto, TensorProto, helper, numpy_helper

DATA = "w.data"  # beside the file that is tried


def models() -> dict[str, ModelProto]:
    """What is spoiled: weights inside and outside, branches, loops, functions, many attributes."""
    return {"plain": _plain(), "outside": _outside(), "branches": _branches(), "attributes": _attributes()}


def _plain() -> ModelProto:
    weights = {"w": np.ones((1, 32), np.float32), "b": np.float32([2.0])}
    steps = [node("Add", "x", "w", to="a"), node("Mul", "a", "b", to="d"), node("Relu", "d")]
    proto = onnx.shape_inference.infer_shapes(proto_of(*steps, weights=weights))
    helper.set_model_props(proto, {"torchport.proof": '{"cases": []}', "other": "text"})
    return proto


def _outside() -> ModelProto:
    proto = onnx.shape_inference.infer_shapes(good())
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) == 4096:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in {"location": DATA, "offset": "0", "length": "4096"}.items():
                tensor.external_data.add(key=key, value=text)
    return proto


def _branches() -> ModelProto:
    then = helper.make_graph([node("Add", "a", "w", to="t")], "t", [], [value("t")])
    then.initializer.append(numpy_helper.from_array(np.float32([1.0]), "w"))
    other = helper.make_graph([node("Identity", "a", to="e")], "e", [], [value("e")])
    turn = [node("Relu", "s", to="next"), node("Identity", "go", to="on")]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on", "c")]
    count = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    body = helper.make_graph(turn, "body", [count, flags[0], value("s")], [flags[1], value("next")])
    steps = [
        node("Own", "x", to="a", domain="mine"),
        node("If", "c", to="d", then_branch=then, else_branch=other),
        node("Loop", "times", "c", "d", to="y", body=body),
    ]
    proto = proto_of(*steps, weights={"times": np.array(3, np.int64)})
    proto.graph.input.append(flags[2])
    inner = [node("Inner", "p", to="q", domain="mine"), node("Relu", "q", to="r")]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    proto.functions.append(helper.make_function("mine", "Own", ["p"], ["r"], inner, opsets))
    proto.functions.append(helper.make_function("mine", "Inner", ["p"], ["q"], [node("Neg", "p", to="q")], opsets))
    return proto


def _attributes() -> ModelProto:
    kinds = {
        "f": 1.5,
        "i": -3,
        "s": "text",
        "fs": [1.0, 2.0],
        "ints": [1, 2],
        "ss": ["a", "b"],
        "t": helper.make_tensor("t", TensorProto.INT64, [2], [1, 2]),
    }
    steps = [node("Mine", "x", "", "k", to="a", domain="mine", **kinds), node("Clip", "a", "", "k", to="d")]
    steps.append(node("Conv", "d", "k", to="y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    proto = proto_of(*steps, weights={"k": np.float32(1.0)})
    proto.graph.value_info.extend([value("a"), value("d")])  # nobody could infer them
    note = proto.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="k")
    return proto


def truncations(every: int = 1) -> Iterator[tuple[str, bytes]]:
    """Each model cut at every length."""
    for name, model in models().items():
        content = model.SerializeToString()
        for length in range(0, len(content), every):
            yield f"{name} cut at {length}", content[:length]


def endless(seed: int) -> Iterator[tuple[str, bytes]]:
    """Models with one to four faults, for ever; the same for the same seed."""
    known = {name: model.SerializeToString() for name, model in models().items()}
    for place in itertools.count():
        chance = random.Random(f"{seed} {place}")
        name = chance.choice(list(known))
        content = known[name]
        for _ in range(chance.choice([1, 1, 2, 4])):
            content = chance.choice(_WAYS)(content, chance)
        yield f"{name}, seed {seed}, number {place}", content


def _flip(content: bytes, chance: random.Random) -> bytes:
    spoiled = bytearray(content or b"\0")
    spoiled[chance.randrange(len(spoiled))] ^= 1 << chance.randrange(8)
    return bytes(spoiled)


def _overwrite(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    new = bytes(chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]) for _ in range(chance.randint(1, 6)))
    return content[:place] + new + content[place + len(new) :]


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(_HOSTILE_FIELDS) + content[place:]


def _remove(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + content[place + chance.randint(1, 40) :]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    """A piece twice: at the right place it is a node, a name or a length given twice."""
    start = chance.randrange(len(content) + 1)
    piece = content[start : start + chance.randint(1, 200)]
    place = chance.choice([start, chance.randrange(len(content) + 1), len(content)])
    return content[:place] + piece + content[place:]


def _swap_texts(content: bytes, chance: random.Random) -> bytes:
    """Another word of the same length, so that the message stays whole: names, types and numbers that do not fit."""
    before, after = chance.choice(_TEXTS)
    return content.replace(before, after, chance.choice([1, -1]))


def _edit(content: bytes, chance: random.Random) -> bytes:
    """A field of some message in it set to something extreme, through protobuf, so that it still parses."""
    try:
        model = ModelProto.FromString(content)
    except Exception:  # noqa: BLE001 - spoiled already
        return content
    message = model
    while True:
        fields = [f for f in message.DESCRIPTOR.fields if f.message_type and _held(message, f)]
        if not fields or chance.random() < 0.25:
            break
        message = chance.choice(_held(message, chance.choice(fields)))
    _set(message, chance)
    return bytes(model.SerializeToString())


def _held(message: object, field: object) -> list[object]:
    found = getattr(message, field.name)  # type: ignore[attr-defined]
    if field.is_repeated:  # type: ignore[attr-defined]
        return list(found)
    return [found] if message.HasField(field.name) else []  # type: ignore[attr-defined]


def _set(message: object, chance: random.Random) -> None:
    field = chance.choice(message.DESCRIPTOR.fields)  # type: ignore[attr-defined]
    if field.message_type is not None or chance.random() < 0.2:
        message.ClearField(field.name)  # type: ignore[attr-defined]
        return
    extreme = {
        field.CPPTYPE_STRING: ["", "x", "y", "w", "a", "d", "../../etc/passwd", "If", "Loop", "a" * 3000],
        field.CPPTYPE_INT64: [0, -1, 1, 2, 2**62, 2**63 - 1, -(2**63)],
        field.CPPTYPE_UINT64: [0, 2**64 - 1],
        field.CPPTYPE_INT32: [0, -1, 1, 7, 8, 16, 2**31 - 1],
        field.CPPTYPE_ENUM: list(field.enum_type.values_by_number) if field.enum_type else [],
    }.get(field.cpp_type, [0.0, float("nan"), 1e38])
    chosen = chance.choice(extreme)
    if field.type == field.TYPE_BYTES:
        chosen = str(chosen).encode()
    if field.is_repeated:
        getattr(message, field.name).extend([chosen] * chance.choice([1, 3, 70]))  # type: ignore[call-overload]
    else:
        setattr(message, field.name, chosen)


_HOSTILE_FIELDS = [
    *(b"\x0a\xff\xff\xff\xff\x07", b"\x12\x00", b"\x2a\x80\x80\x80\x80\x10", b"\x0b" * 120, b"\x08\xff" * 5),
    *(b"\x38\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x0f", b"\x3a\x00", b"\x4a\x04\0\0\0\0"),
]
_TEXTS = [
    *((b"Relu", b"Loop"), (b"Relu", b"Conv"), (b"Mul", b"Add"), (b"MatMul", b"Concat"), (b"Clip", b"Cast")),
    *((b"Identity", b"Constant"), (b"Conv", b"Gemm"), (b"Add", b"Sin"), (b"w.data", b"../etc"), (b"4096", b"9999")),
    *((b"\x01a", b"\x01x"), (b"\x01d", b"\x01a"), (b"\x01w", b"\x01x"), (b"\x01y", b"\x01d"), (b"mine", b"\xff\xfe..")),
    *((b"Inner", b"Relus"), (b"Own", b"Mul"), (b"If", b"Or"), (b"pads", b"axis"), (b"location", b"checksum")),
]  # fmt: skip
_WAYS: list[Callable[[bytes, random.Random], bytes]] = [
    *(_flip, _overwrite, _insert, _remove, _repeat, _swap_texts, _edit, _edit, _edit)
]
