"""Fields of a file that the installed onnx does not know are still there when it is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from made_models import good, node, proto_of, value, written
from onnx import ModelProto, helper

import torchport as tp

# A text, a number, four bytes, eight bytes and a group, in fields 2000 to 2004
FIELDS = b"\x82\x7d\x03abc" + b"\x88\x7d\xff\x7f" + b"\x95\x7d\x01\x02\x03\x04" + b"\x99\x7d" + bytes(range(8))
FIELDS += b"\xa3\x7d\x08\x05\xa4\x7d"


def _model() -> ModelProto:
    branch = helper.make_graph([node("Relu", "x", to="t")], "t", [], [value("t")])
    proto = onnx.shape_inference.infer_shapes(good())
    proto.graph.node[-1].output[0] = "z"
    proto.graph.node.append(node("If", "yes", to="i", then_branch=branch, else_branch=branch))
    proto.graph.node.append(node("Own", "i", to="y", domain="mine"))
    proto.graph.input.append(helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    body = [node("Relu", "a", to="b")]
    proto.functions.append(helper.make_function("mine", "Own", ["a"], ["b"], body, [helper.make_opsetid("", 20)]))
    return proto


PLACES: dict[str, Callable[[ModelProto], Any]] = {
    "model": lambda m: m,
    "graph": lambda m: m.graph,
    "node": lambda m: m.graph.node[1],
    "attribute": lambda m: m.graph.node[4].attribute[0],
    "branch": lambda m: m.graph.node[4].attribute[1].g,
    "node of a branch": lambda m: m.graph.node[4].attribute[0].g.node[0],
    "input": lambda m: m.graph.input[0],
    "output": lambda m: m.graph.output[0],
    "value": lambda m: next(v for v in m.graph.value_info if v.name == "d"),
    "weight": lambda m: m.graph.initializer[0],
    "small weight": lambda m: next(t for t in m.graph.initializer if t.name == "b"),
    "function": lambda m: m.functions[0],
    "node of a function": lambda m: m.functions[0].node[0],
}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_field_of_a_newer_onnx_is_kept(tmp_path: Path, place: str, external: bool) -> None:
    proto = _model()
    PLACES[place](proto).MergeFromString(FIELDS)
    path = written(proto, tmp_path)
    tp.graph.save(tp.graph.load(path), path, external=external)
    saved = onnx.load(path, load_external_data=False)
    assert _unknown(PLACES[place](saved)) == FIELDS
    before = path.read_bytes()
    tp.graph.save(tp.graph.load(path), path, external=external)
    assert path.read_bytes() == before


def _unknown(message: Any) -> bytes:
    """The unknown fields alone: the message without those that are known."""
    bare = type(message)()
    bare.CopyFrom(message)
    for field in message.DESCRIPTOR.fields:
        bare.ClearField(field.name)
    assert len(UnknownFieldSet(bare)) == 5
    return bytes(bare.SerializeToString())


def test_a_part_keeps_what_is_said_of_its_nodes(tmp_path: Path) -> None:
    proto = onnx.shape_inference.infer_shapes(proto_of(node("Relu", "x", to="a"), node("Neg", "a")))
    proto.graph.node[1].MergeFromString(FIELDS)
    path = written(proto, tmp_path)
    for source in (path, tp.graph.load(path)):
        part = tp.graph.cut(source, ["a"], ["y"])
        saved = onnx.load(tp.graph.save(part, tmp_path / "part.onnx"))
        assert _unknown(saved.graph.node[0]) == FIELDS
