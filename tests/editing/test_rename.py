"""Tensors, nodes and dimensions get other names."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from small_models import answers, model

from torchport.editing.rename import rename
from torchport.errors import InputError
from torchport.irtools.metadata import ANNOTATION

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


SIMPLE = "g (float[n,3] x) => (float[n,3] y) <float[3] w = {1, 2, 3}> { [add] a = Add(x, w)  [neg] y = Neg(a) }"
BRANCHES = """g (bool c, float[2,3] x) => (float[2,3] y) {
    w = Neg(x)
    y = If(c) <
        then_branch = t () => (float[2,3] a) { a = Neg(w) },
        else_branch = e () => (float[2,3] b) { k = Relu(w)  b = Neg(k) }>
}"""


def test_inputs_outputs_and_weights_are_tensors() -> None:
    given = model(SIMPLE)
    assert rename(given, {"x": "image", "y": "out", "w": "bias"}) == 3
    assert [v.name for v in (*given.graph.inputs, *given.graph.outputs)] == ["image", "out"]
    assert list(given.graph.initializers) == ["bias"]
    assert np.array_equal(answers(given, image=X)[0], -(X + np.array([1, 2, 3])))


def test_two_names_are_swapped_in_one_call() -> None:
    given = model(
        "g (float[3] x) => (float[3] y) <float[3] v = {1,2,3}, float[3] w = {4,5,6}> { a=Sub(x,v) y=Mul(a,w) }"
    )
    assert rename(given, {"v": "w", "w": "v", "x": "y", "y": "x"}) == 4
    assert given.graph.initializers["w"].const_value.numpy().tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert [v.name for v in given.graph.inputs] == ["y"]
    assert answers(given, y=np.zeros(3, np.float32))[0].tolist() == [-4, -10, -18]


def test_a_tensor_that_branches_use_keeps_its_users() -> None:
    given = model(BRANCHES)
    assert rename(given, {"w": "outer", "k": "inner", "a": "then"}) == 3
    for condition, wanted in ((True, X), (False, -np.maximum(-X, 0))):
        assert np.array_equal(answers(given, c=np.array(condition), x=X)[0], wanted)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"w": "x"}, "another tensor has that name"),
        ({"k": "x"}, "another tensor has that name"),  # would hide an outer one
        ({"x": "k"}, "another tensor has that name"),  # would be hidden by an inner one
        ({"w": "q", "x": "q"}, "another tensor has that name"),
        ({"w": ""}, "no new name"),
        ({"w": None}, "no new name"),
        ({"ww": "q"}, "no tensor, node or dimension 'ww'"),
        ({"w*": "q"}, "has 1 '\\*'"),
        ({"no.*": "q.*"}, "no tensor, node or dimension"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(names: Any, words: str) -> None:
    given = model(BRANCHES)
    before = ir.to_proto(given).SerializeToString()
    with pytest.raises(InputError, match=words):
        rename(given, names)
    assert ir.to_proto(given).SerializeToString() == before


def test_sibling_branches_may_have_one_name() -> None:
    given = model(BRANCHES)
    assert rename(given, {"k": "a"}) == 1
    assert np.array_equal(answers(given, c=np.array(False), x=X)[0], -np.maximum(-X, 0))


def test_unknown_names_come_with_close_ones() -> None:
    with pytest.raises(InputError) as caught:
        rename(model(SIMPLE), {"addd": "q"})
    assert "did you mean add" in str(caught.value)


def test_nodes_are_renamed() -> None:
    given = model(SIMPLE)
    assert rename(given, {"add": "neg", "neg": "add"}) == 2
    assert [n.name for n in given.graph] == ["neg", "add"]
    with pytest.raises(InputError, match="another node has that name"):
        rename(given, {"add": "neg"})


def test_a_name_of_two_kinds_needs_the_kind() -> None:
    given = model("g (float[x,3] x) => (float[x,3] y) { [y] y = Neg(x) }")
    with pytest.raises(InputError, match="a tensor and of a dim"):
        rename(given, {"x": "q"})
    assert rename(given, {"x": "rows"}, kind="dim") == 2
    assert rename(given, {"x": "image"}, kind="tensor") == 1
    assert rename(given, {"y": "negate"}, kind="node") == 1
    assert np.array_equal(answers(given, image=X)[0], -X)
    with pytest.raises(InputError, match="no kind 'axis'"):
        rename(given, {"y": "q"}, kind="axis")


def test_patterns_rename_all_that_match() -> None:
    given = model(
        "g (float[3] x) => (float[3] y) <float[3] enc_a_w = {1,2,3}, float[3] enc_b_w = {4,5,6}>"
        "{ s = Add(x, enc_a_w)  y = Mul(s, enc_b_w) }"
    )
    assert rename(given, {"enc_*_w": "encoder.*.weight"}) == 2
    assert set(given.graph.initializers) == {"encoder.a.weight", "encoder.b.weight"}
    assert answers(given, x=np.zeros(3, np.float32))[0].tolist() == [4, 10, 18]


def test_a_dimension_is_renamed_in_expressions_branches_and_the_proof() -> None:
    given = model(
        "g (bool c, float[batch,3] x) => (float[p,3] y) {"
        "d = Concat<axis=0>(x, x)"
        "y = If(c) <then_branch = t () => (float[q,3] a) { a = Neg(d) },"
        "           else_branch = e () => (float[q,3] b) { b = Relu(d) }> }"
    )
    texts = {"d": "2*batch", "y": "Max(batch, 2*batch)", "a": "batch + batch_1", "b": "batch_1"}
    for graph in given.graphs():
        for node in graph:
            for value in node.outputs:
                value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([texts[str(value.name)], 3])
    given.metadata_props["torchport.proof"] = json.dumps({"sizes": {"batch": [1, 2]}})
    assert rename(given, {"batch": "n"}) == 4
    found = {v.name: str(v.shape[0]) for g in given.graphs() for n in g for v in n.outputs if v.shape is not None}
    assert found == {"d": "2*n", "y": "Max(n, 2*n)", "a": "n + batch_1", "b": "batch_1"}
    assert str(given.graph.inputs[1].shape) == "[n,3]"
    assert json.loads(given.metadata_props["torchport.proof"]) == {"sizes": {"n": [1, 2]}}


def test_dimensions_cannot_become_one_or_an_expression() -> None:
    given = model("g (float[n,m] x) => (float[n,m] y) { y = Neg(x) }")
    with pytest.raises(InputError, match="another dimension has that name"):
        rename(given, {"n": "m"})
    with pytest.raises(InputError, match="cannot be the name of dimension"):
        rename(given, {"n": "batch-size"})
    assert rename(given, {"n": "m", "m": "n"}) == 2
    assert str(given.graph.outputs[0].shape) == "[m,n]"


def test_names_inside_functions_are_renamed() -> None:
    given = model(
        "g (float[2,3] x) => (float[2,3] y) { y = my.F(x) }"
        '<domain: "my", opset_import: ["": 17]> F (a) => (b) { k = Neg(a)  b = Relu(k) }'
    )
    assert rename(given, {"k": "inner", "a": "x"}) == 2  # 'x' outside is another scope
    assert np.array_equal(answers(given, x=X)[0], np.maximum(-X, 0))


def test_quantization_annotations_follow() -> None:
    given = model(SIMPLE)
    given.graph.inputs[0].meta[ANNOTATION] = {"SCALE_TENSOR": "w"}
    rename(given, {"w": "scale"})
    annotation = ir.to_proto(given).graph.quantization_annotation[0]
    assert annotation.quant_parameter_tensor_names[0].value == "scale"


def test_a_name_that_has_a_star_is_a_name() -> None:
    given = model(SIMPLE)
    next(v for n in given.graph for v in n.outputs if v.name == "a").name = "a*"
    assert rename(given, {"a*": "sum"}) == 1
    assert np.array_equal(answers(given, x=X)[0], -(X + np.array([1, 2, 3])))
