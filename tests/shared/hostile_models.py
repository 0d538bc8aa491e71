"""Files made to break whoever opens them: too deep, too many, in circles, or with sizes that are lies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from made_models import node, proto_of, value
from onnx import ModelProto, TensorProto, helper

from torchport.files.protobuf import varint

MANY = 1_000_000


def files() -> Iterator[tuple[str, bytes]]:
    """Each with its name. The one of a million nodes is apart: it takes its time."""
    yield "deep", deep(10_000)
    yield "deep enough to parse", deep(20)
    for name, model in _models().items():
        yield name, model.SerializeToString()


def deep(levels: int) -> bytes:
    """Branches within branches; protobuf itself gives up at a hundred messages."""
    name, kind = _field(1, b"then_branch"), b"\xa0\x01\x05"
    inner = _field(2, b"g")
    for _ in range(levels):
        inner = _field(1, _field(2, b"o") + _field(4, b"If") + _field(5, name + _field(6, inner) + kind))
    return b"\x08\x0a" + _field(7, inner) + _field(8, b"\x0a\x00\x10\x14")


def many(count: int = MANY) -> bytes:
    """A chain of nodes."""
    nodes = (_field(1, _field(1, b"v%d" % n) + _field(2, b"v%d" % (n + 1)) + _field(4, b"Relu")) for n in range(count))
    kind = _field(2, _field(1, b"\x08\x01" + _field(2, _field(1, b"\x08\x04"))))
    ends = _field(11, _field(1, b"v0") + kind) + _field(12, _field(1, b"v%d" % count) + kind)
    return b"\x08\x0a" + _field(7, b"".join(nodes) + _field(2, b"g") + ends) + _field(8, b"\x0a\x00\x10\x14")


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _models() -> dict[str, ModelProto]:
    made = {
        "cycle": proto_of(node("Add", "x", "b", to="a"), node("Relu", "a", to="b"), node("Relu", "b")),
        "needs itself": proto_of(node("Add", "x", "y")),
        "branch needs its node": _branch_needs_its_node(),
        "functions in a circle": _functions(("F", ["G"]), ("G", ["F"])),
        "function calls itself": _functions(("F", ["F"])),
        "functions unfold": _functions(*((chr(70 + n), [chr(71 + n)] * 8) for n in range(12)), ("R", [])),
        "many outputs": proto_of(node("Relu", "x", to="y"), *(node("Neg", "x", to=f"o{n}") for n in range(3000))),
        "expands": _expands(),
        "turns for ever": _turns(),
        "pads without end": proto_of(node("Conv", "x", "x", pads=[2**62] * 4, strides=[0, 0], dilations=[2**62] * 2)),
        "splits without end": proto_of(node("Split", "x", num_outputs=2**31 - 1)),
        "permutes nonsense": proto_of(node("Transpose", "x", perm=[5, -1])),
        "einsum": proto_of(node("Einsum", "x", equation="ij" * 5000 + "->" + "k" * 5000)),
    }
    for name, dims in {
        "huge": [2**40, 2**40],
        "negative": [-5],
        "overflow": [2**63 - 1] * 3,
        "ranks": [1] * 5000,
    }.items():
        made[f"shape {name}"] = _shaped(dims)
        made[f"weight {name}"] = _weight(dims)
    for key, text in {"offset": "-1", "length": "99999999999", "location": "/dev/zero"}.items():
        made[f"data {key}"] = _outside(key, text)
    return made


def _functions(*given: tuple[str, list[str]]) -> ModelProto:
    proto = proto_of(node(given[0][0], "x", domain="mine"))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    for name, called in given:
        ways = [node(one, "p", to=f"q{n}", domain="mine") for n, one in enumerate(called)]
        body = [*ways, node("Identity", "p", to="r")]
        proto.functions.append(helper.make_function("mine", name, ["p"], ["r"], body, opsets))
    return proto


def _branch_needs_its_node() -> ModelProto:
    branch = helper.make_graph([node("Relu", "y", to="t")], "t", [], [value("t")])
    return proto_of(node("If", "x", to="y", then_branch=branch, else_branch=branch))


def _shaped(dims: list[int]) -> ModelProto:
    proto = proto_of(node("Add", "x", "x", to="a"), node("MatMul", "a", "x"))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))
    return proto


def _weight(dims: list[int]) -> ModelProto:
    proto = proto_of(node("Add", "x", "w"), weights={"w": np.float32([1.0])})
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend(dims)
    return proto


def _outside(key: str, text: str) -> ModelProto:
    proto = proto_of(node("Add", "x", "w"), weights={"w": np.float32([1.0])})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for name, entry in ({"location": "w.data", "offset": "0", "length": "4"} | {key: text}).items():
        tensor.external_data.add(key=name, value=entry)
    return proto


def _expands() -> ModelProto:
    """A hundred bytes that mean a terabyte, were they computed."""
    steps = [node("ConstantOfShape", "s", to="a"), node("Expand", "a", "s", to="d"), node("Tile", "d", "s")]
    return proto_of(*steps, weights={"s": np.array([2**20, 2**20], np.int64)})


def _turns() -> ModelProto:
    turn = [node("Relu", "s", to="next"), node("Identity", "go", to="on")]
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")]
    count = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    body = helper.make_graph(turn, "body", [count, flags[0], value("s")], [flags[1], value("next")])
    return proto_of(node("Loop", "m", "", "x", body=body), weights={"m": np.array(2**63 - 1, np.int64)})
