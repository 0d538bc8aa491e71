"""Models are put in order, and answer as before."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from small_models import answers, model

from torchport.editing.cleanup import deduplicate, remove_unused, sort
from torchport.errors import InputError
from torchport.inspection.lint.linter import lint
from torchport.irtools.metadata import ANNOTATION

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


# --- sort -------------------------------------------------------------------------------------------------------------


def reordered(given: ir.Model, names: list[str]) -> ir.Model:
    nodes = {str(n.name): n for n in given.graph}
    given.graph.remove(list(nodes.values()))
    given.graph.extend([nodes[name] for name in names])
    return given


def test_nodes_come_behind_what_they_need_and_others_keep_their_order() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { [a] p = Neg(x) [b] q = Abs(x) [c] r = Add(p, q) [d] y = Relu(r) }"
    given = reordered(model(text), ["d", "b", "a", "c"])
    assert sort(given) == 4
    assert [n.name for n in given.graph] == ["b", "a", "c", "d"]
    assert sort(given) == 0
    assert np.array_equal(answers(given, x=X)[0], np.maximum(-X + np.abs(X), 0))


def test_a_branch_comes_behind_what_it_uses_from_outside() -> None:
    given = model(
        "g (bool c, float[2,3] x) => (float[2,3] y) { [outer] w = Neg(x)"
        "[branch] y = If(c) <then_branch = t () => (float[2,3] a) { a = Neg(w) },"
        "                    else_branch = e () => (float[2,3] b) { b = Relu(w) }> }"
    )
    assert sort(reordered(given, ["branch", "outer"])) == 2
    assert np.array_equal(answers(given, c=np.array(True), x=X)[0], X)


def test_functions_are_sorted_too() -> None:
    given = model(
        "g (float[2,3] x) => (float[2,3] y) { y = my.F(x) }"
        '<domain: "my", opset_import: ["": 17]> F (a) => (b) { k = Neg(a)  b = Relu(k) }'
    )
    body = next(iter(given.functions.values()))
    first = next(iter(body))
    body.remove(first)
    body.append(first)
    assert sort(given) == 2
    assert np.array_equal(answers(given, x=X)[0], np.maximum(-X, 0))


def test_a_circle_is_refused() -> None:
    given = model("g (float[3] x) => (float[3] y) { [a] p = Add(x, x)  [b] y = Neg(p) }")
    first, second = given.graph
    first.replace_input_with(1, second.outputs[0])
    with pytest.raises(InputError, match="need each other"):
        sort(given)


# --- deduplicate ------------------------------------------------------------------------------------------------------


def test_equal_weights_become_one() -> None:
    given = model(
        "g (float[3] x) => (float[3] y) <float[3] a = {1,2,3}, float[3] b = {1,2,3}, float[3] c = {1,2,4},"
        "int64[3] i = {1,2,3}, float[1,3] row = {1,2,3}, float s = {1}, float t = {1}>"
        "{ p = Add(x, a) q = Mul(p, b) r = Sub(q, c) k = Cast<to=1>(i) u = Add(r, k) z = Constant<value_ints=[3]>()"
        "w = Reshape(row, z) v = Add(u, w) m = Add(v, s) y = Mul(m, t) }"
    )
    before = answers(given, x=np.ones(3, np.float32))[0]
    assert deduplicate(given) == 2
    assert list(given.graph.initializers) == ["a", "c", "i", "row", "s"]
    assert np.array_equal(answers(given, x=np.ones(3, np.float32))[0], before)
    assert deduplicate(given) == 0


def test_weights_that_differ_at_their_end_only_stay() -> None:
    given = model("g (float[5000] x) => (float[5000] y) { y = Neg(x) }")
    arrays = [np.zeros(5000, np.float32) for _ in range(3)]
    arrays[1][-1] = 1
    value = given.graph.inputs[0]
    for index, array in enumerate(arrays):
        weight = ir.Value(name=f"w{index}", const_value=ir.tensor(array, name=f"w{index}"))
        given.graph.register_initializer(weight)
        node = ir.node("Add", [value, weight], name=f"add{index}")
        given.graph.insert_before(next(n for n in given.graph if n.op_type == "Neg"), node)
        value = node.outputs[0]
    next(n for n in given.graph if n.op_type == "Neg").replace_input_with(0, value)
    assert deduplicate(given) == 1
    assert list(given.graph.initializers) == ["w0", "w1"]
    assert answers(given, x=np.zeros(5000, np.float32))[0].tolist() == [-0.0] * 4999 + [-1]


def test_branches_use_the_weight_outside_but_not_each_others() -> None:
    branch = "() => (float[3] {0}) <float[3] {0}w = {{1,2,3}}, float[3] {0}v = {{7,8,9}}>"
    body = "{{ {0}s = Add(o, {0}w)  {0} = Mul({0}s, {0}v) }}"
    given = model(
        "g (bool c, float[3] x) => (float[3] y) <float[3] w = {1,2,3}> { o = Add(x, w)"
        f"y = If(c) <then_branch = t {branch.format('a')} {body.format('a')},"
        f"           else_branch = e {branch.format('b')} {body.format('b')}> }}"
    )
    assert deduplicate(given) == 2
    assert [list(g.initializers) for g in given.graphs()] == [["w"], ["av"], ["bv"]]
    for condition in (True, False):
        assert answers(given, c=np.array(condition), x=np.zeros(3, np.float32))[0].tolist() == [14, 32, 54]


def test_inputs_outputs_and_annotated_weights_stay() -> None:
    given = model(
        "g (float[2] x) => (float[2] y, float[2] out)"
        "<float[2] a = {1,2}, float[2] b = {1,2}, float[2] out = {1,2}, float[2] default = {1,2}>"
        "{ p = Add(x, a)  q = Add(p, b)  y = Add(q, default) }"
    )
    given.graph.inputs.append(given.graph.initializers["default"])
    given.graph.inputs[0].meta[ANNOTATION] = {"SCALE_TENSOR": "b"}
    assert deduplicate(given) == 0


def test_texts_are_weights_as_well() -> None:
    given = model("g (string[2] x) => (bool[2] y) { y = Identity(b) }".replace("Identity(b)", "Equal(x, x)"))
    given = ir.from_proto(ir.to_proto(given))
    for name, texts in (("s", ["a", "b"]), ("t", ["a", "b"]), ("u", ["a", "c"])):
        given.graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(texts, name=name)))
    assert deduplicate(given) == 1
    assert list(given.graph.initializers) == ["s", "u"]


# --- remove_unused ----------------------------------------------------------------------------------------------------


def test_what_no_output_needs_is_taken_out() -> None:
    given = model(
        "g (bool c, float[2,3] x, float[3] idle) => (float[2,3] y) <float[3] w = {1,2,3}, float[3] d = {1,2,3}> {"
        "k = Add(x, d)  l = my.F(k)  o = Neg(x)  u = Abs(o)"
        "i = If(c) <then_branch = t () => (float[2,3] a) { a = Add(u, w) },"
        "           else_branch = e () => (float[2,3] b) { b = Neg(l) }>"
        "y = If(c) <then_branch = p () => (float[2,3] q) <float[3] z = {1,2,3}> { r = Add(l, z)  q = Neg(o) },"
        "           else_branch = m () => (float[2,3] n) { n = Relu(o) }> }"
        '<domain: "my", opset_import: ["": 17]> F (a) => (b) { b = my.G(a) }'
        '<domain: "my", opset_import: ["": 17]> G (a) => (b) { b = Relu(a) }'
    )
    # nodes r, k, l, u, i; weights z, w, d; functions F, G; the import of 'my'
    assert remove_unused(given) == 11
    assert [n.op_type for n in given.graph] == ["Neg", "If"]
    assert [v.name for v in given.graph.inputs] == ["c", "x", "idle"]
    assert dict(given.opset_imports) == {"": 17}
    assert {f.rule for f in lint(given)} == {"unused-input"}
    idle = np.zeros(3, np.float32)
    assert np.array_equal(answers(given, c=np.array(True), x=X, idle=idle)[0], X)
    assert np.array_equal(answers(given, c=np.array(False), x=X, idle=idle)[0], np.maximum(-X, 0))
    assert remove_unused(given) == 0


def test_optional_outputs_weights_that_are_outputs_and_function_bodies() -> None:
    given = model(
        "g (float[2,3] x) => (float[2,2] y, float[2] w) <int64[1] k = {2}, float[2] w = {1, 2}> {"
        "v, i = TopK(x, k)  y = my.F(v) }"
        '<domain: "my", opset_import: ["": 17]> F (a) => (b) { dead = Neg(a)  b = Abs(a) }'
    )
    assert remove_unused(given) == 1
    assert [len(n.outputs) for n in given.graph] == [2, 1]
    assert [n.op_type for n in next(iter(given.functions.values()))] == ["Abs"]
    y, w = answers(given, x=X)
    assert np.array_equal(y, np.abs(np.sort(X)[:, ::-1][:, :2]))
    assert w.tolist() == [1, 2]
