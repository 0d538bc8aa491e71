"""`tp.graph.lint` finds every fault in one pass, and each says what to do."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from made_models import good, node, proto_of, square, written
from onnx import TensorProto, helper

import torchport as tp
from torchport.errors import EngineMissingError, FileError, TorchportError
from torchport.inspection.lint.fault import Fault
from torchport.inspection.lint.linter import lint


def found(proto: onnx.ModelProto, folder: Path, engine: str | None = None) -> dict[str, list[Fault]]:
    faults: dict[str, list[Fault]] = {}
    for fault in lint(written(proto, folder), engine):
        assert fault.message
        assert fault.next_step
        faults.setdefault(fault.rule, []).append(fault)
    return faults


def plain() -> onnx.ModelProto:
    """The good model, with a name for each node and no domain that it does not use."""
    proto = good()
    proto.graph.node[-1].name = "last"
    del proto.opset_import[1:]
    return proto


def test_a_good_model_has_no_fault(tmp_path: Path, onnx_file: Path) -> None:
    assert not found(plain(), tmp_path)
    assert lint(ir.from_proto(plain())) == []
    assert lint(onnx_file, engine="onnxruntime") == []
    assert lint(tp.graph.load(onnx_file)) == []


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    steps = [
        node("Relu", "x", to="a", nonsense=1),
        node("MatMul", "a", "small", to="b"),
        node("Add", "b", "nowhere", to="c"),
        helper.make_node("Exp", ["x"], ["dead"], name="exp"),
        node("Mul", "c", "c"),
    ]
    proto = proto_of(*steps, weights={"small": np.zeros((3, 3), np.float32), "spare": square()})
    faults = found(proto, tmp_path)
    assert {r: f[0].severity for r, f in faults.items()} == {
        "checker": "error",
        "shape": "error",
        "missing-name": "error",
        "unused-node": "warning",
        "unused-weight": "warning",
        "unused-import": "note",
    }
    assert faults["checker"][0].node == "relu"
    assert faults["shape"][0].node == "matmul"
    assert (faults["missing-name"][0].node, faults["missing-name"][0].tensor) == ("add", "nowhere")
    assert faults["unused-node"][0].node == "exp"
    assert faults["unused-weight"][0].tensor == "spare"


def test_errors_come_first(tmp_path: Path) -> None:
    proto = proto_of(node("Relu", "x", bad=1), weights={"spare": square()})
    severities = [f.severity for f in lint(written(proto, tmp_path))]
    assert severities == sorted(severities, key=("error", "warning", "note").index)
    assert severities[0] == "error"


def test_every_node_the_checker_dislikes_is_named(tmp_path: Path) -> None:
    steps = [
        helper.make_node("Relu", ["x", "x"], ["a"], name="two"),
        helper.make_node("Nope", ["a"], ["b"], name="unknown"),
        helper.make_node("Upsample", ["b", "w"], ["c"], name="old"),
        helper.make_node("Concat", ["c", "c"], ["y"], name="axisless"),
    ]
    faults = found(proto_of(*steps, weights={"w": square()}), tmp_path)["checker"]
    assert [f.node for f in faults] == ["two", "unknown", "old", "axisless"]
    assert "deprecated" in faults[2].message


def test_names_given_twice(tmp_path: Path) -> None:
    steps = [node("Relu", "x", to="a"), node("Exp", "x", to="a"), node("Add", "a", "a"), node("Neg", "x", to="w")]
    faults = found(proto_of(*steps, weights={"w": square()}), tmp_path)["duplicate-name"]
    assert {f.tensor for f in faults} == {"a", "w"}


def test_nodes_of_one_name_are_a_warning(tmp_path: Path) -> None:
    steps = [node("Relu", "x", to="a"), node("Relu", "a", to="y")]
    assert found(proto_of(*steps), tmp_path)["duplicate-node-name"][0].node == "relu"


def test_a_missing_name_has_the_close_one(tmp_path: Path) -> None:
    steps = [node("Relu", "x", to="hidden"), node("Exp", "hiden")]
    fault = found(proto_of(*steps), tmp_path)["missing-name"][0]
    assert fault.next_step == "did it mean 'hidden'?"


def test_a_circle_is_told_by_its_nodes(tmp_path: Path) -> None:
    steps = [node("Add", "x", "c", to="a"), node("Relu", "a", to="b"), node("Exp", "b", to="c"), node("Neg", "c")]
    fault = found(proto_of(*steps), tmp_path)["cycle"][0]
    assert all(name in fault.message for name in ("add", "relu", "exp"))


def test_an_unsorted_graph_is_told_from_a_circle(tmp_path: Path) -> None:
    faults = found(proto_of(node("Exp", "a"), node("Relu", "x", to="a")), tmp_path)
    assert "1 nodes come before what they need, first node 'exp' (Exp)" in faults["not-sorted"][0].message
    assert "cycle" not in faults


def test_what_only_dead_nodes_use_is_unused(tmp_path: Path) -> None:
    steps = [node("Relu", "x"), node("Exp", "w", to="d1"), node("Neg", "d1", to="d2")]
    faults = found(proto_of(*steps, weights={"w": square()}), tmp_path)
    assert [f.node for f in faults["unused-node"]] == ["exp", "neg"]
    assert faults["unused-weight"][0].tensor == "w"


def test_an_input_nobody_needs(tmp_path: Path) -> None:
    proto = proto_of(node("Relu", "x"))
    proto.graph.input.append(helper.make_tensor_value_info("spare", TensorProto.FLOAT, [1]))
    assert found(proto, tmp_path)["unused-input"][0].tensor == "spare"


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [32, 32])
    return helper.make_graph(list(nodes), name, [], [out])


def test_branches_are_looked_into_and_may_take_from_outside(tmp_path: Path) -> None:
    good_one = branch("then", node("Relu", "h", to="t"))
    bad_one = branch("else", node("Exp", "nothing", to="d"), node("Neg", "h", to="e", wrong=1))
    choice = helper.make_node("If", ["c"], ["y"], name="if", then_branch=good_one, else_branch=bad_one)
    faults = found(proto_of(node("Abs", "x", to="h"), choice, weights={"c": np.array(True)}), tmp_path)
    assert "in 'else_branch' of node 'if' (If)" in faults["missing-name"][0].message
    assert [f.node for f in faults["unused-node"]] == ["exp"]
    assert [f.node for f in faults["checker"]] == ["neg"]


def test_types_that_do_not_fit(tmp_path: Path) -> None:
    proto = proto_of(node("Add", "x", "n"), weights={"n": np.zeros((32, 32), np.int64)})
    faults = found(proto, tmp_path)
    assert faults["type"][0].node == "add"
    proto = proto_of(node("Relu", "x", to="a"), node("Exp", "a"))
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.INT64, [32, 32]))
    assert any("int" in f.message.lower() for f in found(proto, tmp_path)["type"])


def test_a_stated_shape_that_cannot_be(tmp_path: Path) -> None:
    proto = proto_of(node("Relu", "x", to="a"), node("Exp", "a"))
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [32, 31]))
    assert "31" in found(proto, tmp_path)["shape"][0].message


CHANGES: dict[str, tuple[Callable[[onnx.ModelProto], Any], str]] = {
    "newer IR": (lambda p: setattr(p, "ir_version", 99), "ir-version"),
    "IR of its time": (lambda p: setattr(p, "ir_version", 8), "ir-version"),
    "no IR": (lambda p: p.ClearField("ir_version"), "ir-version"),
    "weights as inputs": (lambda p: setattr(p, "ir_version", 3), "ir-version"),
    "newer opset": (lambda p: setattr(p.opset_import[0], "version", 999), "opset"),
    "no opset": (lambda p: p.ClearField("opset_import"), "opset"),
    "two opsets": (lambda p: p.opset_import.add(domain="ai.onnx", version=13), "opset"),
    "no domain": (lambda p: setattr(p.graph.node[0], "domain", "else"), "opset"),
    "no graph": (lambda p: p.ClearField("graph"), "no-graph"),
    "no output": (lambda p: setattr(p.graph.output[0], "name", "nobody"), "missing-name"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_versions_and_imports_that_do_not_fit(what: str, tmp_path: Path) -> None:
    change, rule = CHANGES[what]
    proto = good()
    change(proto)
    assert rule in found(proto, tmp_path)


def test_functions_that_call_each_other_in_a_circle_end(tmp_path: Path) -> None:
    proto = proto_of(helper.make_node("A", ["x"], ["y"], domain="mine"))
    for name, other in ("AB", "BA"):
        call = helper.make_node(other, ["p"], ["q"], domain="mine")
        proto.functions.append(
            helper.make_function("mine", name, ["p"], ["q"], [call], [helper.make_opsetid("mine", 1)])
        )
    assert "circle" in found(proto, tmp_path)["functions"][0].message


def test_a_function_nobody_calls(tmp_path: Path) -> None:
    proto = proto_of(node("Relu", "x"))
    inner = helper.make_node("Neg", ["p"], ["q"])
    proto.functions.append(helper.make_function("mine", "F", ["p"], ["q"], [inner], [helper.make_opsetid("", 20)]))
    assert "mine::F" in found(proto, tmp_path)["unused-function"][0].message


def external(name: str, location: str, length: int) -> TensorProto:
    tensor = TensorProto(name=name, dims=[32, 32], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value=str(length))
    return tensor


def test_every_tensor_whose_data_is_missing_or_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "short.data").write_bytes(b"12")
    steps = [node("MatMul", "x", "gone", to="a"), node("Add", "a", "short", to="b"), node("Mul", "b", "away")]
    proto = proto_of(*steps)
    for name, place in (("gone", "gone.data"), ("short", "short.data"), ("away", "../away.data")):
        proto.graph.initializer.append(external(name, place, 4096))
    faults = found(proto, tmp_path)
    assert [f.tensor for f in faults["missing-data"]] == ["gone"]
    assert [f.tensor for f in faults["unsafe-data"]] == ["short", "away"]


def test_a_model_in_memory_whose_data_file_is_gone(tmp_path: Path) -> None:
    model = tp.graph.load(tp.graph.save(ir.from_proto(plain()), tmp_path / "m.onnx", external=True))
    assert lint(model) == []
    next(tmp_path.glob("*.data")).unlink()
    assert {f.rule for f in lint(model)} == {"missing-data"}


def test_an_operator_without_a_kernel_is_told_with_its_types(tmp_path: Path) -> None:
    proto = proto_of(
        helper.make_node("Cast", ["x"], ["i"], name="cast", to=TensorProto.INT16),
        helper.make_node("Relu", ["i"], ["r"], name="relu"),
        helper.make_node("Cast", ["r"], ["y"], name="back", to=TensorProto.FLOAT),
    )
    assert "no-kernel" not in found(proto, tmp_path)
    fault = found(proto, tmp_path, "onnxruntime")["no-kernel"][0]
    assert fault.node == "relu"
    assert "Relu for (int16)" in fault.message


def test_an_operator_of_ones_own_needs_its_library(tmp_path: Path) -> None:
    proto = proto_of(helper.make_node("FooOp", ["x"], ["y"], name="foo", domain="mine"))
    assert found(proto, tmp_path, "onnxruntime")["own-operator"][0].severity == "error"
    named = json.dumps([{"name": "mine::FooOp", "library": "libfoo.so"}])
    helper.set_model_props(proto, {"torchport.operators": named})
    fault = found(proto, tmp_path, "onnxruntime")["own-operator"][0]
    assert fault.severity == "warning"
    assert "libfoo.so" in fault.next_step


def test_an_engine_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(EngineMissingError, match="no engine 'abacus'"):
        lint(written(good(), tmp_path), "abacus")


def test_a_fault_names_the_python_line(tmp_path: Path) -> None:
    proto = proto_of(node("Relu", "x", bad=1))
    entry = proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = "torchport.source", "net.py:7"
    assert found(proto, tmp_path)["checker"][0].source == "net.py:7"
    assert "(net.py:7)" in str(found(proto, tmp_path)["checker"][0])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 zip", b"nonsense"])
def test_what_is_no_model_is_a_typed_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        lint(written(content, tmp_path))


def test_a_mutated_file_gives_faults_or_a_typed_error(tmp_path: Path, onnx_file: Path) -> None:
    chance = random.Random(0)
    originals = [good().SerializeToString(), onnx_file.read_bytes()]
    for _ in range(150):
        content = bytearray(chance.choice(originals))
        if chance.random() < 0.3:
            del content[chance.randrange(len(content)) :]
        for _ in range(chance.choice([1, 3, 10]) if content else 0):
            content[chance.randrange(min(len(content), 2500))] = chance.randrange(256)
        path = written(bytes(content), tmp_path)
        for look in (lint, tp.graph.describe):
            with contextlib.suppress(TorchportError):
                look(path)


def test_ten_thousand_nodes_take_seconds(tmp_path: Path) -> None:
    steps, before = [], "x"
    for n in range(5000):
        steps += [helper.make_node("MatMul", [before, "w"], [f"m{n}"], name=f"m{n}")]
        steps += [helper.make_node("Relu", [f"m{n}"], [f"r{n}"], name=f"r{n}")]
        before = f"r{n}"
    proto = proto_of(*steps, node("Identity", before), weights={"w": square()})
    path = written(proto, tmp_path)
    start = time.process_time()
    assert {f.rule for f in lint(path)} == {"unused-import"}
    assert time.process_time() - start < 8  # 1 s on the machine this was written on


def test_types_behind_an_operator_of_ones_own_are_unknown_and_no_fault(tmp_path: Path) -> None:
    steps = [helper.make_node("FooOp", ["x"], ["a"], name="foo", domain="mine")]
    steps += [node("Relu", "a", to="b"), node("Cast", "b", to="c"), node("MatMul", "c", "w")]
    steps[2].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    assert not found(proto_of(*steps, weights={"w": square()}), tmp_path)


def test_large_weights_in_branches_and_constants_are_no_fault(tmp_path: Path) -> None:
    def with_weight(name: str) -> onnx.GraphProto:
        graph = branch(name, node("MatMul", "x", f"w_{name}", to=f"y_{name}"))
        graph.initializer.append(onnx.numpy_helper.from_array(square(), f"w_{name}"))
        graph.node[0].name = name
        return graph

    choice = helper.make_node("If", ["c"], ["a"], name="if", then_branch=with_weight("t"), else_branch=with_weight("e"))
    held = helper.make_node("Constant", [], ["k"], name="k", value=onnx.numpy_helper.from_array(square(), "k"))
    proto = proto_of(choice, held, node("Add", "a", "k"), weights={"c": np.array(True)})
    del proto.opset_import[1:]
    assert not found(proto, tmp_path)
    onnx.checker.check_model(proto, full_check=True)
    model = ir.from_proto(proto)
    assert lint(model) == []
    tp.graph.save(model, tmp_path / "outside.onnx", external=True)
    assert lint(tmp_path / "outside.onnx", engine="onnxruntime") == []


def test_an_engine_that_does_not_take_the_opset_is_told(tmp_path: Path) -> None:
    proto = plain()
    assert "too-new" not in found(proto, tmp_path, "onnxruntime")
    proto.opset_import[0].version, proto.ir_version = onnx.defs.onnx_opset_version(), onnx.IR_VERSION
    import onnxruntime

    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        taken = True
    except Exception:  # noqa: BLE001 - its errors have no common class
        taken = False
    assert ("too-new" in found(proto, tmp_path, "onnxruntime")) is not taken
