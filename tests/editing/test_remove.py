"""Nodes taken out of a graph."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import answers, model, refused

from torchport.editing.remove import bypass, remove
from torchport.editing.rename import rename

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


# --- bypass -----------------------------------------------------------------------------------------------------------


def test_a_node_between_others_is_bypassed() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = my.Foo(a)  y = Neg(b) }")
    assert bypass(given, "my::Foo") == 1
    assert [n.op_type for n in given.graph] == ["Relu", "Neg"]
    assert "my" not in given.opset_imports
    assert np.array_equal(answers(given, x=X)[0], -np.maximum(X, 0))


def test_an_output_keeps_its_name() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { a = Neg(x)  y = my.Foo(a) }")
    bypass(given, "my::Foo")
    assert [o.name for o in given.graph.outputs] == ["y"]
    assert np.array_equal(answers(given, x=X)[0], -X)


def test_an_input_that_becomes_an_output_goes_through_identity() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { y = my.Foo(x) }")
    bypass(given, "my::Foo")
    assert [n.op_type for n in given.graph] == ["Identity"]
    assert np.array_equal(answers(given, x=X)[0], X)


def test_an_output_used_inside_too() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Neg(x)  y = my.Foo(a)  z = Relu(y) }")
    bypass(given, "my::Foo")
    y, z = answers(given, x=X)
    assert np.array_equal(y, -X)
    assert np.array_equal(z, np.maximum(-X, 0))


def test_two_in_a_row_and_two_outputs_of_one_value() -> None:
    text = "{ y = Neg(x)  a = my.Foo(y)  z = my.Foo(a) }"
    given = model(f"g (float[2,3] x) => (float[2,3] y, float[2,3] z) {text}")
    assert bypass(given, "my::Foo") == 2
    y, z = answers(given, x=X)
    assert np.array_equal(y, -X)
    assert np.array_equal(z, -X)


def test_by_name() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { [first] a = Neg(x)  [second] y = Neg(a) }")
    assert bypass(given, "second") == 1
    assert [n.name for n in given.graph] == ["first"]
    assert np.array_equal(answers(given, x=X)[0], -X)


def test_weights_and_functions_that_only_it_needed_go_too() -> None:
    given = model(
        "g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}, float[3] kept = {1,1,1}>"
        "{ s = Neg(w)  a = my.F(x, s)  y = Add(a, kept) }"
        '<domain: "my", opset_import: ["": 17]> F (p, q) => (r) { r = Add(p, q) }'
    )
    assert bypass(given, "my::F") == 1
    assert list(given.graph.initializers) == ["kept"]
    assert [n.op_type for n in given.graph] == ["Add"]
    assert not given.functions
    assert np.array_equal(answers(given, x=X)[0], X + 1)


def test_shapes_behind_a_node_that_changed_them_follow() -> None:
    given = model(
        "g (float[2,3] x) => (float[3,2] y) <float[3,2] a, float[3,2] b> { a = Transpose(x)  b = Neg(a)  y = Relu(b) }"
    )
    bypass(given, "Transpose")
    assert str(given.graph.outputs[0].shape) == "[2,3]"
    assert np.array_equal(answers(given, x=X)[0], np.maximum(-X, 0))


def test_inside_a_branch() -> None:
    given = model(
        "g (bool c, float[2,3] x) => (float[2,3] y) { w = Neg(x)"
        "y = If(c) <then_branch = t () => (float[2,3] a) { a = my.Foo(w) },"
        "           else_branch = e () => (float[2,3] b) { k = my.Foo(w)  b = Neg(k) }> }"
    )
    assert bypass(given, "my::Foo") == 2
    assert np.array_equal(answers(given, c=np.array(True), x=X)[0], -X)
    assert np.array_equal(answers(given, c=np.array(False), x=X)[0], X)


@pytest.mark.parametrize(
    ("text", "what", "words"),
    [
        ("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }", "Foo", "no node or operator 'Foo'"),
        ("g (float[2,3] x) => (int64[2] y) { y = Shape(x) }", "Shape", "takes float32 and gives int64"),
        (
            "g (float[2,3] x) => (float[2,2] y, int64[2,2] z) { k = Constant<value_ints=[2]>() y, z = TopK(x, k) }",
            "TopK",
            "is used",
        ),
        ("g (float[2,3] x) => (float y) { y = Constant<value_float=1.0>() }", "Constant", "no input"),
        (
            "g (float[2,3] x) => (float[3,3] y) <float[2,3] w = {1,2,3,4,5,6}> { a = Transpose(x)  y = MatMul(a, w) }",
            "Transpose",
            "cannot be bypassed: a node MatMul: Incompatible dimensions",
        ),
    ],
)
def test_what_cannot_be_bypassed_is_refused(text: str, what: str, words: str) -> None:
    refused(model(text), words, bypass, what)


# --- remove -----------------------------------------------------------------------------------------------------------

TWO_HEADS = """g (float[2,3] x, float[3] extra) => (float[2,3] y, float[2,3] z)
    <float[3] shared = {1,2,3}, float[3] own = {4,5,6}> {
    [trunk] t = Add(x, shared)
    [main] y = Neg(t)
    [scaled] s = Mul(own, extra)
    [lonely] d = Abs(x)
    [head] h = Add(t, s)
    [aux] z = my.F(h)
}
<domain: "my", opset_import: ["": 17]> F (a) => (b) { b = Relu(a) }"""


def test_an_output_goes_with_what_only_it_needed() -> None:
    given = model(TWO_HEADS)
    assert remove(given, "aux") == 3
    assert [n.name for n in given.graph] == ["trunk", "main", "lonely"]  # what was unused before is not its business
    assert list(given.graph.initializers) == ["shared"]
    assert [v.name for v in given.graph.inputs] == ["x", "extra"]
    assert [v.name for v in given.graph.outputs] == ["y"]
    assert not given.functions
    assert "my" not in given.opset_imports
    assert np.array_equal(answers(given, x=X, extra=np.ones(3, np.float32))[0], -(X + np.array([1, 2, 3])))


def test_what_others_need_is_refused_with_their_names() -> None:
    error = refused(model(TWO_HEADS), "cannot be removed: others need", remove, "trunk")
    assert "node 'main' (Neg), node 'head' (Add)" in str(error)


def test_nodes_that_need_each_other_go_together() -> None:
    given = model("g (float[3] x) => (float[3] y) { y = Neg(x)  [aux_a] p = Abs(x)  [aux_b] q = Relu(p) }")
    assert remove(given, "aux_*") == 2
    assert answers(given, x=np.ones(3, np.float32))[0].tolist() == [-1, -1, -1]


def test_a_branch_frees_what_it_used_from_outside() -> None:
    given = model(
        "g (bool c, float[2,3] x) => (float[2,3] y, float[2,3] z) <float[3] w = {1,2,3}> {"
        "z = Relu(x)  [only] k = Neg(x)  [both] o = Abs(x)  l = Not(c)"
        "[branch] y = If(l) <then_branch = t () => (float[2,3] a) { a = Add(k, w) },"
        "                    else_branch = e () => (float[2,3] b) { b = Neg(o) }> }"
    )
    assert remove(given, "branch") == 4
    assert [n.op_type for n in given.graph] == ["Relu"]
    assert not given.graph.initializers
    assert np.array_equal(answers(given, c=np.array(True), x=X)[0], np.maximum(X, 0))


def test_the_last_output_and_results_of_branches_stay() -> None:
    refused(model("g (float[3] x) => (float[3] y) { [neg] y = Neg(x) }"), "would have no outputs", remove, "neg")
    branch = model(
        "g (bool c, float[3] x) => (float[3] y) {"
        "y = If(c) <then_branch = t () => (float[3] a) { [inner] a = Neg(x) },"
        "           else_branch = e () => (float[3] b) { b = Relu(x) }> }"
    )
    refused(branch, "the result of a branch", remove, "inner")
    refused(branch, "no node or operator", remove, "nobody")


def test_a_node_goes_with_those_of_the_same_operator_in_its_branches() -> None:
    inner = (
        "If(c) <then_branch = p () => (float[3] q) { q = Neg(x) }, else_branch = r () => (float[3] s) { s = Abs(x) }>"
    )
    given = model(
        f"g (bool c, float[3] x) => (float[3] y, float[3] z) {{ z = Relu(x)  y = If(c) <"
        f"then_branch = t () => (float[3] a) {{ a = {inner} }}, else_branch = e () => (float[3] b) {{ b = Neg(x) }}> }}"
    )
    assert remove(given, "If") == 1
    assert answers(given, c=np.array(True), x=np.ones(3, np.float32))[0].tolist() == [1, 1, 1]


def test_a_changed_model_no_longer_says_that_it_was_proven() -> None:
    changed = model("g (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }")
    changed.metadata_props["torchport.proof"] = "{}"
    rename(changed, {"a": "b"})
    assert "torchport.proof" in changed.metadata_props
    bypass(changed, "Relu")
    assert "torchport.proof" not in changed.metadata_props
