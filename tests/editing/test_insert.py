"""Nodes put behind a tensor, or before one input of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from torchport.editing.insert import insert
from torchport.errors import InputError
from torchport.files.onnx_files import save
from torchport.inspection.lint.linter import lint

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def model(text: str, opset: int = 20) -> ir.Model:
    head = f'<ir_version: 9, opset_import: ["": {opset}, "my": 1]>'
    made = ir.from_proto(onnx.parser.parse_model(f"{head} {text}"))
    for node in made.graph.all_nodes():
        node.name = f"n_{node.outputs[0].name}"
    return made


def answer(given: ir.Model, *arrays: Any) -> list[Any]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in lint(given) if f.severity == "error"] == []
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def content(given: ir.Model) -> bytes:
    return ir.to_proto(given).SerializeToString(deterministic=True)


FORK = "g (float[N,3] x) => (float[N,3] y, float[N,3] z) { a = Neg(x)  y = Relu(a)  z = Exp(a) }"


def test_every_user_of_a_tensor_gets_the_new_value() -> None:
    given = model(FORK)
    given.graph[0].metadata_props["torchport.module"] = "first"
    assert insert(given, "Abs", after="a", name="mine") == 1
    assert given.graph[1].name == "mine"
    assert given.graph[1].metadata_props["torchport.module"] == "first"
    y, z = answer(given, X)
    assert np.array_equal(y, np.abs(X))
    assert np.allclose(z, np.exp(np.abs(X)))


def test_before_a_node_only_that_node_gets_it() -> None:
    given = model(FORK)
    assert insert(given, "Abs", before="n_z") == 1
    y, z = answer(given, X)
    assert np.array_equal(y, np.maximum(-X, 0))
    assert np.allclose(z, np.exp(np.abs(X)))


def test_before_the_second_input_of_a_node() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) <float[3] w = {1.0, 2.0, 3.0}> { y = Sub(x, w) }")
    assert insert(given, "Neg", before="n_y:1") == 1
    assert np.array_equal(answer(given, X)[0], X + np.float32([1, 2, 3]))


def test_an_output_keeps_its_name_and_inner_users_get_the_new_value_too() -> None:
    given = model("g (float[N,3] x) => (float[N,3] y, float[N,3] z) { y = Neg(x)  z = Exp(y) }")
    insert(given, "Abs", after="y")
    assert [o.name for o in given.graph.outputs] == ["y", "z"]
    y, z = answer(given, X)
    assert np.array_equal(y, np.abs(X))
    assert np.allclose(z, np.exp(np.abs(X)))


def test_numbers_become_constants_of_the_type_the_operator_wants() -> None:
    given = model("g (float16[N,3] x) => (float16[N,3] y) { y = Neg(x) }")
    insert(given, "Clip", after="x", inputs=[0, 1.5])
    assert {v.dtype for v in given.graph.initializers.values()} == {ir.DataType.FLOAT16}
    assert np.array_equal(answer(given, X.astype(np.float16))[0], -np.clip(X.astype(np.float16), 0, 1.5))
    insert(given, "Reshape", after="y", inputs=[[-1]])
    assert answer(given, X.astype(np.float16))[0].shape == (6,)


def test_types_and_shapes_follow_and_the_interface_with_them() -> None:
    given = model("g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  b = Abs(a)  y = Relu(b) }")
    insert(given, "Cast", after="a", attributes={"to": "float16"})
    assert [n.outputs[0].dtype.name for n in given.graph] == ["FLOAT", "FLOAT16", "FLOAT16", "FLOAT16"]
    assert answer(given, X)[0].dtype == np.float16
    insert(given, "Unsqueeze", before="n_y", inputs=[[0]])
    assert given.graph.outputs[0].shape == [1, "N", 3]
    assert answer(given, X)[0].shape == (1, 2, 3)


def test_a_type_that_somebody_behind_it_does_not_take_is_refused() -> None:
    given = model("g (float[N,3] x, float[N,3] w) => (float[N,3] y) { a = Neg(x)  y = Add(a, w) }")
    before = content(given)
    with pytest.raises(InputError, match="would not be valid any more"):
        insert(given, "Cast", after="a", attributes={"to": "float16"})
    assert content(given) == before


def test_types_follow_through_branches_and_loops() -> None:
    given = model(
        """g (float[2,3] x, bool c, int64 n) => (float[2,3] y, float[2,3] z) {
            a = Neg(x)
            y = If (c) <then_branch = t () => (float[2,3] q) { q = Abs(a) },
                        else_branch = e () => (float[2,3] r) { r = Relu(a) }>
            d = Neg(a)  z = Loop (n, c, d) <body = b (int64 i, bool k, float[2,3] s) => (bool k2, float[2,3] s2) {
                k2 = Identity(k)  s2 = Add(s, s) }> }"""
    )
    insert(given, "Cast", after="a", attributes={"to": "double"})
    assert [o.dtype for o in given.graph.outputs] == [ir.DataType.DOUBLE, ir.DataType.DOUBLE]
    y, z = answer(given, X, np.array(True), np.array(2))
    assert np.allclose(y, np.abs(X))
    assert np.allclose(z, 4 * X)


def test_inside_a_branch_and_a_function_with_a_constant() -> None:
    given = model(
        """g (float[2,3] x, bool c) => (float[2,3] y) { a = my.F(x)
            y = If (c) <then_branch = t () => (float[2,3] q) { m = Neg(a)  q = Abs(m) },
                        else_branch = e () => (float[2,3] r) { r = Relu(a) }> }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { inner = Neg(x)  y = Relu(inner) }"""
    )
    insert(given, "Add", after="m", inputs=[10.0])
    insert(given, "Add", after="inner", inputs=[5.0])
    assert np.allclose(answer(given, X, np.array(True))[0], np.abs(10 - np.maximum(5 - X, 0)))


def test_a_tensor_of_the_model_goes_in_as_well() -> None:
    given = model("g (float[N,3] x) => (float[N,3] y, float[N,3] s) { a = Neg(x)  y = Relu(a)  s = Exp(x) }")
    insert(given, "Mul", after="a", inputs=["s"])
    assert np.allclose(answer(given, X)[0], np.maximum(-X * np.exp(X), 0), atol=1e-6)
    before = content(given)
    with pytest.raises(InputError, match="each would need the other"):
        insert(given, "Mul", after="a", inputs=["y"])
    assert content(given) == before


def test_nodes_and_models_are_put_in_too(tmp_path: Path) -> None:
    given = model(FORK)
    insert(given, "(x) => (y) { h = Sigmoid(x)  y = Mul(x, h) }", after="x")
    part = model("g (float[M,3] i) => (float[M,3] o) <float[3] w = {1.0, 2.0, 3.0}> { o = Mul(i, w) }")
    assert insert(given, save(part, tmp_path / "part.onnx"), after="n_a") == 1
    swish = X / (1 + np.exp(-X))
    assert np.allclose(answer(given, X)[0], np.maximum(-swish * np.float32([1, 2, 3]), 0), atol=1e-6)


def test_an_operator_of_ones_own_brings_its_domain() -> None:
    given = model(FORK)
    insert(given, "dbg::Watch", after="a", attributes={"label": "here", "level": 2})
    assert given.opset_imports["dbg"] == 1
    assert given.graph[1].attributes["label"].value == "here"
    assert [f for f in lint(given) if f.severity == "error"] == []


def test_every_node_of_an_operator() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { a = Neg(x)  y = Neg(a) }")
    assert insert(given, "Abs", after="Neg") == 2
    assert np.array_equal(answer(given, X)[0], np.abs(X))


@pytest.mark.parametrize(
    ("node", "rest", "words"),
    [
        ("Abs", {"after": "aa"}, "did you mean a"),
        ("Abs", {"before": "n_q"}, "did you mean n_"),
        ("Abs", {"before": "n_y:3"}, "its inputs are 0: 'a'"),
        ("Abs", {}, "after a tensor or before a node"),
        ("Abs", {"after": "a", "before": "n_y"}, "after a tensor or before a node"),
        ("Abss", {"after": "a"}, "did you mean Abs"),
        ("Add", {"after": "a"}, "does not fit"),
        ("Cast", {"after": "a"}, "does not fit"),
        ("Cast", {"after": "a", "attributes": {"to": "floot"}}, "cannot be 'floot'"),
        ("(x, w) => (y) { y = Mul(x, w) }", {"after": "a"}, "has 2 inputs and 1 outputs"),
        ("(x) => (y) { y = Abs(x) }", {"after": "a", "attributes": {"k": 1}}, "for an operator's name"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(node: str, rest: dict[str, Any], words: str) -> None:
    given = model(FORK)
    before = content(given)
    with pytest.raises(InputError, match=words):
        insert(given, node, **rest)
    assert content(given) == before
