"""Attributes of nodes are set, and types and shapes follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import answers, model, refused

from torchport.editing.attributes import set_attribute

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


LEAKY = "g (float[2,3] x) => (float[2,3] y) { [first] a = LeakyRelu<alpha=0.1>(x)  [second] y = LeakyRelu(a) }"


def leaky(x: Any, alpha: float) -> Any:
    return np.where(x < 0, np.float32(alpha) * x, x)


def test_one_node_or_all_of_an_operator() -> None:
    given = model(LEAKY)
    assert set_attribute(given, "second", "alpha", 0.5) == 1
    assert np.allclose(answers(given, x=X)[0], leaky(leaky(X, 0.1), 0.5))
    assert set_attribute(given, "LeakyRelu", "alpha", 2) == 2  # a whole number will do for a float
    assert np.allclose(answers(given, x=X)[0], leaky(leaky(X, 2), 2))


def test_none_takes_it_away_so_that_the_default_holds() -> None:
    given = model(LEAKY)
    assert set_attribute(given, "LeakyRelu", "alpha", None) == 1
    assert np.allclose(answers(given, x=X)[0], leaky(leaky(X, 0.01), 0.01))
    refused(given, "has no attribute 'alpha'", set_attribute, "first", "alpha", None)


def test_shapes_behind_it_follow() -> None:
    given = model(
        "g (float[b,1,h,8] x) => (float[b,1,p,4] y) <float[1,1,2,2] k = {1,1,1,1}, float[b,1,p,4] c>"
        "{ [conv] c = Conv<strides=[2,2]>(x, k)  y = Relu(c) }"
    )
    assert set_attribute(given, "conv", "strides", [1, 1]) == 1
    assert [str(d) for d in given.graph.outputs[0].shape] == ["b", "1", "None", "7"]  # type: ignore[union-attr]
    assert answers(given, x=np.ones((1, 1, 5, 8), np.float32))[0].shape == (1, 1, 4, 7)


def test_stated_shapes_that_are_still_true_stay() -> None:
    """Inference does not know height//2: at sizes, it does."""
    given = model(
        "g (float[b,1,h,8] x) => (float[b,1,q,4] y) <float[1,1,2,2] k = {1,1,1,1}>"
        "{ [conv] c = Conv<strides=[2,2]>(x, k)  [own] o = my.Own(c) y = Relu(o) }"
    )
    for node in given.graph:
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["b", 1, "h//2", 4])
    set_attribute(given, "conv", "dilations", [1, 1])
    assert [str(n.outputs[0].shape) for n in given.graph] == ["[b,1,h//2,4]"] * 3
    set_attribute(given, "conv", "pads", [1, 0, 1, 0])  # h//2 + 1: what comes after is not known any more
    shapes = [[str(d) for d in n.outputs[0].shape or ()] for n in given.graph]
    assert shapes == [["b", "1", "None", "4"], [], ["None"] * 4]


def test_the_type_of_an_output_follows() -> None:
    given = model("g (float[2,3] x) => (int64[2,3] y) { [cast] y = Cast<to=7>(x) }")
    set_attribute(given, "cast", "to", "float16")
    assert given.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert answers(given, x=X)[0].dtype == np.float16


def test_a_shape_that_a_constant_decides_follows() -> None:
    given = model("g (float[2,3] x) => (float[6] y) { [to] s = Constant<value_ints=[6]>()  y = Reshape(x, s) }")
    set_attribute(given, "to", "value_ints", [3, 2])
    assert str(given.graph.outputs[0].shape) == "[3,2]"
    assert answers(given, x=X)[0].shape == (3, 2)


def test_inside_branches_and_functions() -> None:
    given = model(
        "g (bool c, float[2,3] x) => (float[2,3] y) {"
        "y = If(c) <then_branch = t () => (float[2,3] a) { [inner] a = LeakyRelu(x) },"
        "           else_branch = e () => (float[2,3] b) { [call] b = my.F<slope=0.5>(x) }> }"
        '<domain: "my", opset_import: ["": 17]> F <slope> (p) => (q) { [deep] q = LeakyRelu<alpha: float = @slope>(p) }'
    )
    set_attribute(given, "inner", "alpha", 0.25)
    set_attribute(given, "call", "slope", 3)
    assert np.allclose(answers(given, c=np.array(True), x=X)[0], leaky(X, 0.25))
    assert np.allclose(answers(given, c=np.array(False), x=X)[0], leaky(X, 3))
    refused(given, "must have 'slope'", set_attribute, "call", "slope", None)
    refused(given, "has no attribute 'alpha'", set_attribute, "call", "alpha", 1.0)
    set_attribute(given, "deep", "alpha", 0.125)  # the parameter is not asked any more
    assert np.allclose(answers(given, c=np.array(False), x=X)[0], leaky(X, 0.125))


LOOP = """g (int64 n, bool c, float[2,3] x) => (float[2,3] y, float[k,2,3] s) {
    [before] z = Transpose<perm=[0,1]>(x)
    y, s = Loop(n, c, z) <body = b (int64 i, bool ci, float[2,3] v) => (bool co, float[2,3] vo, float[2,3] so) {
        co = Identity(ci)  [inner] vo = LeakyRelu<alpha=0.5>(v)  so = Neg(vo)
    }>
}"""


def test_a_loop_keeps_the_shapes_that_are_still_true() -> None:
    given = model(LOOP)
    set_attribute(given, "inner", "alpha", 0.25)
    assert [str(v.shape) for v in given.graph.outputs] == ["[2,3]", "[k,2,3]"]
    y, s = answers(given, n=np.array(2), c=np.array(True), x=X)
    assert np.allclose(y, leaky(leaky(X, 0.25), 0.25))
    assert np.allclose(s, [-leaky(X, 0.25), -leaky(leaky(X, 0.25), 0.25)])


def test_a_loop_forgets_the_shapes_that_are_not() -> None:
    given = model(LOOP)
    set_attribute(given, "before", "perm", [1, 0])
    shapes = [[d for d in v.shape or () if isinstance(d, int)] for v in given.graph.outputs]
    assert shapes in ([[], []], [[3, 2], [3, 2]])
    y, s = answers(given, n=np.array(2), c=np.array(True), x=X)
    assert np.allclose(y, leaky(leaky(X.T, 0.5), 0.5))
    assert s.shape == (2, 3, 2)


def test_a_tensor_keeps_its_dtype() -> None:
    given = model("g (float16[2] x) => (float16[2] y) { [two] c = Constant<value = float16[1] {2}>()  y = Mul(x, c) }")
    set_attribute(given, "two", "value", [0.1])
    assert answers(given, x=np.ones(2, np.float16))[0].tolist() == [np.float16(0.1)] * 2
    set_attribute(given, "two", "value", np.array([4], np.float16))
    assert answers(given, x=np.ones(2, np.float16))[0].tolist() == [4, 4]
    refused(given, "tensor\\(float\\)|[Tt]ype", set_attribute, "two", "value", np.array([4], np.float32))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, ir.AttributeType.INT),
        (3, ir.AttributeType.INT),
        (0.5, ir.AttributeType.FLOAT),
        ("text", ir.AttributeType.STRING),
        ([1, 2], ir.AttributeType.INTS),
        ([1, 0.5], ir.AttributeType.FLOATS),
        (["a"], ir.AttributeType.STRINGS),
        (np.float32(0.5), ir.AttributeType.FLOAT),
        (np.ones(2, np.float32), ir.AttributeType.TENSOR),
    ],
)
def test_an_operator_of_ones_own_is_free(value: Any, kind: ir.AttributeType) -> None:
    given = model("g (float[2] x) => (float[2] y) { [own] y = my.Own(x) }")
    assert set_attribute(given, "own", "anything", value) == 1
    attribute = next(iter(given.graph)).attributes["anything"]
    assert attribute.type == kind
    onnx.checker.check_model(ir.to_proto(given))


def test_the_type_an_attribute_has_already_holds() -> None:
    given = model("g (float[2] x) => (float[2] y) { [own] y = my.Own<gain=0.5>(x) }")
    set_attribute(given, "own", "gain", 2)
    assert next(iter(given.graph)).attributes["gain"].type == ir.AttributeType.FLOAT
    refused(given, "a number, not 'loud'", set_attribute, "own", "gain", "loud")
    refused(given, "nothing tells the type", set_attribute, "own", "other", [])


BAD = """g (float[2,3] x, float[3,4] w) => (float[2,4] y) <float[2,3] t> {
    [pick] t = Transpose<perm=[0,1]>(x)
    [cast] c = Cast<to=1>(t)
    [product] y = MatMul(c, w)
}"""


@pytest.mark.parametrize(
    ("node", "name", "value", "words"),
    [
        ("pick", "perms", [1, 0], "has no attribute 'perms'"),
        ("product", "alpha", 1.0, "has no attribute 'alpha'"),
        ("pick", "perm", 1, "is a list of integers, not 1"),
        ("pick", "perm", [0.5], "is a list of integers"),
        ("cast", "to", 1.0, "is an integer, not 1.0"),
        ("cast", "to", "float33", "no dtype 'float33'"),
        ("cast", "to", None, "must have 'to'"),
        ("cast", "to", 2**70, "is an integer"),
        ("pick", "perm", [1, 0], "cannot be \\[1, 0\\]: .*[Ii]ncompatible dimensions"),
        ("cast", "to", "int64", "cannot be 'int64'"),
        ("nobody", "to", 1, "no node or operator"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(node: str, name: str, value: Any, words: str) -> None:
    refused(model(BAD), words, set_attribute, node, name, value)


def test_the_error_lists_what_there_is() -> None:
    error = refused(model(BAD), "no attribute", set_attribute, "pick", "perms", [1, 0])
    assert error.next_step == "did you mean perm? it has perm"
