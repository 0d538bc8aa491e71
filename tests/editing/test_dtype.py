"""Inputs and outputs get another dtype, and the inside stays as it was."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import answers, model, refused

from torchport.editing.dtype import set_dtype
from torchport.inspection.lint.linter import lint

X = np.arange(6, dtype=np.float32).reshape(2, 3)


HALVED = "g (float[n,3] x) => (float[n,3] y) <float two = {2}> { [div] y = Div(x, two) }"
BRANCHES = """g (bool c, float[2,3] x) => (float[2,3] y) {
    y = If(c) <then_branch = t () => (float[2,3] a) { a = Neg(x) },
               else_branch = e () => (float[2,3] b) { b = Relu(x) }>
}"""


def casts(given: ir.Model) -> int:
    return sum(n.op_type == "Cast" for n in given.graph)


def test_an_input_is_cast_behind_its_name() -> None:
    given = model(HALVED)
    assert set_dtype(given, "x", "uint8") == 1
    assert [(v.name, v.dtype, str(v.shape)) for v in given.graph.inputs] == [("x", ir.DataType.UINT8, "[n,3]")]
    assert np.array_equal(answers(given, x=X.astype(np.uint8))[0], X / 2)
    assert set_dtype(given, "x", "uint8") == 0


def test_an_output_is_cast_under_its_name() -> None:
    given = model(HALVED)
    assert set_dtype(given, "y", "float16") == 1
    assert [(v.name, v.dtype, str(v.shape)) for v in given.graph.outputs] == [("y", ir.DataType.FLOAT16, "[n,3]")]
    found = answers(given, x=X)[0]
    assert found.dtype == np.float16
    assert np.array_equal(found, (X / 2).astype(np.float16))


def test_an_output_that_is_used_inside_stays_precise_there() -> None:
    given = model("g (float[3] x) => (float[3] y, float[3] z) <float third = {3}> { y = Div(x, third)  z = Neg(y) }")
    set_dtype(given, "y", "float16")
    y, z = answers(given, x=np.ones(3, np.float32))
    assert y.dtype == np.float16
    assert np.array_equal(z, -(np.ones(3, np.float32) / np.float32(3)))


def test_branches_use_the_cast() -> None:
    given = model(BRANCHES)
    set_dtype(given, "x", "int32")
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.int32)
    assert np.array_equal(answers(given, c=np.array(True), x=x)[0], -x)
    assert np.array_equal(answers(given, c=np.array(False), x=x)[0], np.maximum(x, 0))


@pytest.mark.parametrize("name", ["x", "y"])
def test_setting_it_back_takes_the_cast_out(name: str) -> None:
    given = model(HALVED)
    before = onnx.printer.to_text(ir.to_proto(given))
    set_dtype(given, name, "float16")
    set_dtype(given, name, "int32")  # not by way of float16, which has no 4097
    assert casts(given) == 1
    set_dtype(given, name, "float32")
    assert onnx.printer.to_text(ir.to_proto(given)) == before


def test_one_cast_goes_from_the_newest_dtype_to_the_inside() -> None:
    given = model(HALVED)
    set_dtype(given, "x", "float16")
    set_dtype(given, "x", "int32")
    assert answers(given, x=np.full((1, 3), 8194, np.int32))[0].tolist() == [[4097.0] * 3]


def test_a_cast_of_the_models_own_goes_if_that_loses_nothing() -> None:
    given = model("g (float[3] x) => (float[3] y) { b = Cast<to=2>(x)  a = Cast<to=1>(b)  y = Neg(a) }")
    narrow = model("g (float16[3] x) => (float[3] y) { a = Cast<to=1>(x)  y = Neg(a) }")
    set_dtype(narrow, "x", "float32")  # float32 by way of float16 rounds, and goes on doing so
    assert casts(narrow) == 2
    assert answers(narrow, x=np.full(3, 2049, np.float32))[0].tolist() == [-2048] * 3
    set_dtype(given, "x", "uint8")  # every uint8 is a float32
    assert casts(given) == 1
    assert answers(given, x=np.array([0, 7, 255], np.uint8))[0].tolist() == [0, -7, -255]


def test_a_default_value_is_converted_if_it_fits() -> None:
    text = "g (float[2] x, float[2] bias = {1, 2}) => (float[2] y) { y = Add(x, bias) }"
    given = model(text)
    if not given.graph.inputs[1].is_initializer():
        given.graph.inputs[1].const_value = ir.tensor(np.array([1, 2], np.float32), name="bias")
        given.graph.register_initializer(given.graph.inputs[1])
    set_dtype(given, "bias", "int32")
    assert answers(given, x=np.zeros(2, np.float32))[0].tolist() == [1, 2]
    assert answers(given, x=np.zeros(2, np.float32), bias=np.array([5, 6], np.int32))[0].tolist() == [5, 6]
    other = model(HALVED)
    other.graph.inputs.append(other.graph.initializers["two"])
    other.graph.initializers["two"].const_value = ir.tensor(np.array(2.5, np.float32), name="two")
    refused(other, "default value of input 'two' does not fit into int32", set_dtype, "two", "int32")


def test_names_that_are_taken_are_avoided() -> None:
    given = model("g (float[3] x) => (float[3] y) { [cast_x] x_cast = Neg(x)  y = Relu(x_cast) }")
    set_dtype(given, "x", "float64")
    assert answers(given, x=np.array([-1.0, 0, 1]))[0].tolist() == [1, 0, 0]
    assert len({n.name for n in given.graph}) == 3


def test_a_weight_that_is_an_output() -> None:
    given = model("g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }")
    set_dtype(given, "w", "int64")
    y, w = answers(given, x=np.zeros(2, np.float32))
    assert y.tolist() == [1, 2]
    assert w.tolist() == [1, 2]
    assert w.dtype == np.int64


def test_a_model_of_ones_own_operators_gets_the_import() -> None:
    given = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["my": 1]> g (float[2] x) => (float[2] y) { y = my.Own(x) }'
        )
    )
    set_dtype(given, "x", "bfloat16")
    onnx.checker.check_model(ir.to_proto(given))
    assert [f for f in lint(given) if f.severity == "error"] == []


def test_an_input_that_nothing_uses_needs_no_cast() -> None:
    given = model("g (float[2] x, float[2] idle) => (float[2] y) { y = Neg(x) }")
    set_dtype(given, "idle", "int64")
    assert casts(given) == 0
    assert answers(given, x=np.ones(2, np.float32), idle=np.zeros(2, np.int64))[0].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("xx", "float16", "no input or output 'xx'"),
        ("x", "flota16", "no dtype 'flota16'"),
        ("x", "string", "no dtype 'string'"),
        ("x", "complex64", "does not know complex64"),
        ("x", "int4", "Cast of opset 17 does not know int4"),
        ("s", "float16", "tensor\\(string\\), which cannot be cast"),
        ("q", "float16", "seq\\(tensor\\(float\\)\\), which cannot be cast"),
        ("both", "float16", "is an input and an output"),
    ],
)
def test_what_cannot_be_cast_is_refused(name: str, dtype: str, words: str) -> None:
    text = "g (float[2] x, string[2] s, seq(float[2]) q, float[2] both) => (float[2] y, float[2] both) { y = Neg(x) }"
    refused(model(text), words, set_dtype, name, dtype)
