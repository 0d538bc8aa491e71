"""Nodes taken out of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import torchport as tp
from torchport.errors import InputError


def model(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "devtech": 1]> {text}')
    return ir.from_proto(proto)


def answer(given: ir.Model, *arrays: Any) -> Any:
    onnx.checker.check_model(ir.to_proto(given))
    return tp.session(given)(*arrays)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_node_between_others_is_bypassed() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = devtech.Foo(a)  y = Neg(b) }")
    assert tp.graph.bypass(given, "devtech::Foo") == 1
    assert [n.op_type for n in given.graph] == ["Relu", "Neg"]
    assert "devtech" not in given.opset_imports
    assert np.array_equal(answer(given, X), -X)


def test_an_output_keeps_its_name() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { a = Neg(x)  y = devtech.Foo(a) }")
    tp.graph.bypass(given, "devtech::Foo")
    assert [o.name for o in given.graph.outputs] == ["y"]
    assert np.array_equal(answer(given, X), -X)


def test_an_input_that_becomes_an_output_goes_through_identity() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { y = devtech.Foo(x) }")
    tp.graph.bypass(given, "devtech::Foo")
    assert [n.op_type for n in given.graph] == ["Identity"]
    assert np.array_equal(answer(given, X), X)


def test_an_output_used_inside_too() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Neg(x)  y = devtech.Foo(a)  z = Relu(y) }")
    tp.graph.bypass(given, "devtech::Foo")
    y, z = answer(given, X)
    assert np.array_equal(y, -X)
    assert np.array_equal(z, np.maximum(-X, 0))


def test_two_in_a_row_and_two_outputs_of_one_value() -> None:
    text = "{ y = Neg(x)  a = devtech.Foo(y)  z = devtech.Foo(a) }"
    given = model(f"g (float[2,3] x) => (float[2,3] y, float[2,3] z) {text}")
    assert tp.graph.bypass(given, "devtech::Foo") == 2
    y, z = answer(given, X)
    assert np.array_equal(y, -X)
    assert np.array_equal(z, -X)


def test_by_name() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], "first"), helper.make_node("Neg", ["a"], ["y"], "second")]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    proto = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), ir_version=8)
    given = ir.from_proto(proto)
    assert tp.graph.bypass(given, "second") == 1
    assert [n.name for n in given.graph] == ["first"]


@pytest.mark.parametrize(
    ("text", "what", "words"),
    [
        ("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }", "Foo", "no node or operator 'Foo'"),
        ("g (float[2,3] x) => (int64[2] y) { y = Shape(x) }", "Shape", "cannot be bypassed"),
        (
            "g (float[2,3] x) => (float[2,2] y, int64[2,2] z) { k = Constant<value_ints=[2]>() y, z = TopK(x, k) }",
            "TopK",
            "is used",
        ),
        ("g (float[2,3] x) => (float y) { y = Constant<value_float=1.0>() }", "Constant", "no input"),
    ],
)  # fmt: skip
def test_what_cannot_be_bypassed_is_refused(text: str, what: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tp.graph.bypass(model(text), what)
