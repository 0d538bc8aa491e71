"""Models that make no sense are refused, and unusual ones that do are opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from made_models import good, node, proto_of, value, written
from onnx import helper

from torchport.errors import FileError, UnsafeFileError
from torchport.files import external_data
from torchport.files.onnx_files import load
from torchport.files.validation import check_well_formed


def _changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = good()
    change(proto)
    return proto


def _functions(**calls: list[str]) -> onnx.ModelProto:
    proto = proto_of(node(next(iter(calls)), "x", domain="mine"))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    for name, called in calls.items():
        body = [node(c, "i", to=f"v{n}", domain="mine") for n, c in enumerate(called)]
        body.append(node("Identity", "i", to="o"))
        proto.functions.append(helper.make_function("mine", name, ["i"], ["o"], body, opsets))
    return proto


def _function_within_if() -> onnx.ModelProto:
    proto = _functions(F=[])
    inner = helper.make_graph([node("F", "i", to="z", domain="mine")], "b", [], [value("z")])
    conditional = node("If", "i", to="u", then_branch=inner, else_branch=inner)
    proto.functions[0].node.insert(0, conditional)
    return proto


def _loop_through_subgraph() -> onnx.ModelProto:
    inner = helper.make_graph([node("Identity", "y", to="z")], "b", [], [value("z")])
    return proto_of(node("If", "x", then_branch=inner, else_branch=inner))


def _outer_value_as_output() -> onnx.ModelProto:
    inner = helper.make_graph([node("Identity", "x", to="z")], "b", [], [value("x")])
    return proto_of(node("If", "x", then_branch=inner, else_branch=inner))


NONSENSE: dict[str, Callable[[], onnx.ModelProto]] = {
    "no opset": lambda: _changed(lambda p: p.ClearField("opset_import")),
    "no IR version": lambda: _changed(lambda p: p.ClearField("ir_version")),
    "newer IR": lambda: _changed(lambda p: setattr(p, "ir_version", onnx.IR_VERSION + 1)),
    "negative IR": lambda: _changed(lambda p: setattr(p, "ir_version", -3)),
    "newer opset": lambda: _changed(lambda p: setattr(p.opset_import[0], "version", 999)),
    "newer ml opset": lambda: _changed(lambda p: p.opset_import.add(domain="ai.onnx.ml", version=999)),
    "opset 0": lambda: _changed(lambda p: setattr(p.opset_import[0], "version", 0)),
    "two opsets": lambda: _changed(lambda p: p.opset_import.add(domain="ai.onnx", version=11)),
    "domain not imported": lambda: proto_of(node("Mine", "x", domain="other")),
    "no operator": lambda: proto_of(node("", "x")),
    "undefined input": lambda: proto_of(node("Add", "x", "nothing")),
    "undefined output": lambda: proto_of(node("Relu", "x", to="z")),
    "made twice": lambda: proto_of(node("Relu", "x"), node("Abs", "x")),
    "input made again": lambda: proto_of(node("Relu", "x"), node("Abs", "x", to="x")),
    "weight twice": lambda: _changed(lambda p: p.graph.initializer.append(p.graph.initializer[0])),
    "weight without name": lambda: _changed(lambda p: p.graph.initializer.add(data_type=1, dims=[0])),
    "attribute twice": lambda: _changed(
        lambda p: p.graph.node[0].attribute.extend([helper.make_attribute("a", 1)] * 2)
    ),
    "cycle": lambda: proto_of(node("Add", "x", "b", to="a"), node("Relu", "a", to="b"), node("Relu", "b")),
    "own input": lambda: proto_of(node("Add", "x", "y")),
    "cycle through a subgraph": _loop_through_subgraph,
    "outer value as output": _outer_value_as_output,
    "function calls itself": lambda: _functions(F=["F"]),
    "functions call each other": lambda: _functions(F=["G"], G=["H"], H=["F"]),
    "function calls itself in a branch": _function_within_if,
    "function twice": lambda: _changed(lambda p: p.functions.extend(list(_functions(F=[]).functions) * 2)),
    "name not text": lambda: _not_text(),
}


def _not_text() -> onnx.ModelProto:
    content = proto_of(node("Identity", "x")).SerializeToString()
    return onnx.ModelProto.FromString(content.replace(b"Identity", b"Identit\xff"))


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_model_that_makes_no_sense_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FileError) as caught:
        load(written(NONSENSE[kind](), tmp_path))
    assert "m.onnx" in str(caught.value.where)
    assert caught.value.next_step


def test_functions_that_unfold_to_billions_of_nodes_are_refused(tmp_path: Path) -> None:
    calls = {f"F{i}": [f"F{i + 1}"] * 10 for i in range(12)} | {"F12": []}
    with pytest.raises(UnsafeFileError, match="unfold"):
        load(written(_functions(**calls), tmp_path))


def test_custom_operators_and_functions_open(tmp_path: Path) -> None:
    model = load(written(proto_of(node("Mine", "x", domain="mine")), tmp_path))
    assert [n.op_type for n in model.graph] == ["Mine"]
    assert len(load(written(_functions(F=["G", "G"], G=[]), tmp_path)).functions) == 2


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    model = load(written(proto_of(node("Relu", "a"), node("Abs", "x", to="a")), tmp_path))
    assert [n.op_type for n in model.graph] == ["Abs", "Relu"]


def test_many_nodes_are_checked_quickly(tmp_path: Path) -> None:
    steps = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    proto = proto_of(node("Abs", "x", to="v0"), *steps, node("Abs", "v20000"))
    started = time.perf_counter()
    external_data.check_external(proto, tmp_path)
    assert check_well_formed(proto, "here")
    assert time.perf_counter() - started < 5
