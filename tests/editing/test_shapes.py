"""Dimensions fixed and renamed, shapes stated and forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import torchport as tp
from torchport.editing.shapes import clear_shapes, set_dim, set_shape
from torchport.errors import InputError


def model(text: str, opset: int = 18) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "mine": 1]> {text}'))


def run(given: ir.Model, **feeds: Any) -> list[np.ndarray]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in tp.graph.lint(given) if f.severity == "error"] == []
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def shape(given: ir.Model, name: str) -> str:
    for graph in given.graphs():
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
            if value.name == name:
                return str(value.shape)
    raise AssertionError(name)


WEIGHT = ",".join(["1"] * 27)
CONV = (
    f"g (float[batch,3,h,w] x) => (float[batch,c,oh,ow] y) <float[1,3,3,3] k = {{{WEIGHT}}}>"
    " { a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, k) y = Relu(a) }"
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_fixed_dimension_is_that_number_everywhere() -> None:
    given = model(CONV)
    set_dim(given, "batch", 2)
    set_dim(given, "x:-1", 8)
    assert shape(given, "x") == "[2,3,h,8]"
    assert shape(given, "a") == "[2,1,None,4]"
    assert shape(given, "y") == "[2,1,oh,4]"
    set_dim(given, "x:2", "6")
    assert shape(given, "y") == "[2,1,3,4]"
    assert run(given, x=np.ones((2, 3, 6, 8), np.float32))[0].shape == (2, 1, 3, 4)


def test_expressions_of_it_are_worked_out() -> None:
    given = model("g (float[n,3] x) => (float[q,3] y) { y = Concat<axis=0>(x, x) }")
    given.graph.outputs[0].shape = ir.Shape(["2*n", 3])
    assert set_dim(given, "n", 2) == 2
    assert shape(given, "y") == "[4,3]"
    np.testing.assert_array_equal(run(given, x=X)[0], np.concatenate([X, X]))


def test_a_dimension_gets_another_name_in_expressions_too() -> None:
    given = model("g (float[n,3] x) => (float[q,3] y) { y = Concat<axis=0>(x, x) }")
    given.graph.outputs[0].shape = ir.Shape(["2*n", 3])
    set_dim(given, "n", "batch")
    assert shape(given, "x") == "[batch,3]"
    assert shape(given, "y") == "[2*batch,3]"


def test_shapes_in_branches_follow() -> None:
    given = model(
        "g (float[n,3] x, bool c) => (float[n,3] y) { y = If (c) <then_branch = t () => (float[n,3] p) { p = Neg(x) },"
        " else_branch = e () => (float[n,3] q) { q = Relu(x) }> }"
    )
    set_dim(given, "n", 2)
    assert shape(given, "p") == shape(given, "q") == shape(given, "y") == "[2,3]"
    np.testing.assert_array_equal(run(given, x=X, c=np.array(True))[0], -X)


def test_a_fixed_size_becomes_another_fixed_size() -> None:
    given = model("g (float[1,6] x) => (float[1,2,3] y) <int64[3] s = {1,2,3}> { y = Reshape(x, s) }")
    assert set_dim(given, "x:0", 2) == 2
    assert shape(given, "y") == "[2,2,3]"
    np.testing.assert_array_equal(run(given, x=np.stack([X.ravel(), -X.ravel()]))[0], np.stack([X, -X]))


def test_a_size_that_is_so_already_changes_nothing() -> None:
    assert set_dim(model("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }"), "x:0", 2) == 0


def test_a_dimension_without_a_name_gets_one() -> None:
    given = model("g (float[?,3] x) => (float[?,3] y) { y = Neg(x) }")
    set_dim(given, "x:0", "batch")
    assert shape(given, "x") == shape(given, "y") == "[batch,3]"


@pytest.mark.parametrize(
    ("which", "to", "words"),
    [
        ("batc", 2, "no dimension 'batc'.*\n.*did you mean batch"),
        ("x:9", 2, "rank 4, there is no axis 9"),
        ("z:0", 2, "no dimension 'z:0'"),
        ("batch", 0, "size from 1 on"),
        ("batch", -3, "size from 1 on"),
        ("batch", "a b", "no name for a dimension"),
        ("batch", "h", "has a dimension 'h' already"),
        ("batch", True, "size from 1 on"),
    ],
)
def test_what_is_no_dimension_or_size_is_refused(which: str, to: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        set_dim(model(CONV), which, to)


def test_a_size_that_contradicts_a_weight_is_refused_and_nothing_is_changed() -> None:
    given = model("g (float[n,m] x) => (float[n,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }")
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match="'m' cannot be 4"):
        set_dim(given, "m", 4)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before
    set_dim(given, "m", 3)
    assert run(given, x=X)[0].shape == (2, 2)


def test_the_shape_of_an_input_is_set_axis_by_axis() -> None:
    given = model("g (float[1,6] x) => (float[1,2,3] y) <int64[3] s = {1,2,3}> { y = Reshape(x, s) }")
    assert set_shape(given, "x", ["batch", None]) > 0
    assert shape(given, "y") == "[batch,2,3]"
    assert set_shape(given, "x", [4, 6]) > 0
    assert shape(given, "y") == "[4,2,3]"


def test_the_shape_of_a_tensor_inside_is_stated() -> None:
    given = model("g (float[n,3] x) => (float[n,3] y) { a = mine.Foo(x) y = Relu(a) }")
    given.graph[0].outputs[0].dtype = ir.DataType.FLOAT
    assert set_shape(given, "a", ["n", 3]) == 1
    assert shape(given, "a") == "[n,3]"


@pytest.mark.parametrize(
    ("tensor", "dims", "words"),
    [
        ("y", [1, 3], "axis 1 of 'y' is 2"),
        ("y", [1, 2, 3], "has rank 2"),
        ("yy", [1], "no tensor 'yy'.*\n.*did you mean y"),
        ("w", [3, 2], "is a weight"),
        ("x", [1, 2, 3], "has rank 2"),
        ("x", [1, 4], "cannot"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(tensor: str, dims: list[Any], words: str) -> None:
    given = model("g (float[1,3] x) => (float[1,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }")
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match=words):
        set_shape(given, tensor, dims)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before


def test_inner_shapes_are_forgotten_and_the_interface_stays() -> None:
    given = model(CONV)
    set_dim(given, "batch", 2)
    assert clear_shapes(given) == 1
    assert shape(given, "a") == "None"
    assert shape(given, "x") == "[2,3,h,w]"
    assert shape(given, "y").startswith("[2,")
    assert clear_shapes(given) == 0


def test_an_axis_is_named_alone_where_several_share_a_placeholder() -> None:
    given = model("g (float[n,3,n,n] x) => (float[n,3,n,n] y) { y = Relu(x) }")
    for value in (given.graph.inputs[0], given.graph.outputs[0]):
        value.shape = ir.Shape(["?", 3, "?", "?"])
    set_dim(given, "x:0", "batch")
    assert shape(given, "x") == "[batch,3,?,?]"
    set_dim(given, "x:3", 8)
    assert shape(given, "x") == "[batch,3,?,8]"
