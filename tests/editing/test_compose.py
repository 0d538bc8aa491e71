"""One model of two: behind each other, or side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from torchport.editing.compose import chain, merge
from torchport.errors import InputError, OpsetError
from torchport.files.onnx_files import load, save
from torchport.inspection.lint.linter import lint

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def model(text: str, opset: int = 20, ir_version: int = 9) -> ir.Model:
    head = f'<ir_version: {ir_version}, opset_import: ["": {opset}, "my": 1]>'
    return ir.from_proto(onnx.parser.parse_model(f"{head} {text}"))


def answer(given: ir.Model, *arrays: Any) -> list[Any]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in lint(given) if f.severity == "error"] == []
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def content(given: ir.Model) -> bytes:
    return ir.to_proto(given).SerializeToString(deterministic=True)


def shapes(values: Any) -> dict[str, list[Any]]:
    return {v.name: [d if isinstance(d, int) else d.value for d in v.shape] for v in values}


FIRST = """g (float[N,3] x) => (float[N,3] f, float[N,3] aside) <float[3] w = {1.0, 2.0, 3.0}>
    { f = Mul(x, w)  aside = Neg(x) }"""
SECOND = """h (float[batch,3] f, float[k] bias) => (float[batch,3] y) <float[3] w = {5.0, 5.0, 5.0}>
    { t = Add(f, w)  aside = Relu(t)  y = Add(aside, bias) }"""
W = np.float32([1, 2, 3])


def test_outputs_go_into_inputs_of_the_same_name_and_what_is_left_stays() -> None:
    one, two = model(FIRST), model(SECOND)
    before = content(one), content(two)
    whole = chain(one, two)
    assert shapes(whole.graph.inputs) == {"x": ["N", 3], "bias": ["k"]}
    assert shapes(whole.graph.outputs) == {"aside": ["N", 3], "y": ["N", 3]}
    aside, y = answer(whole, X, np.float32([10]))
    assert np.array_equal(aside, -X)
    assert np.allclose(y, np.maximum(X * W + 5, 0) + 10)
    assert (content(one), content(two)) == before
    assert "second/w" in whole.graph.initializers
    assert two.graph.initializers["w"].const_value.name == "w"


def test_weights_are_shared() -> None:
    one, two = model(FIRST), model(SECOND)
    two.graph.initializers["w"].const_value = ir.Tensor(np.full(3, 5, np.float32), name="w")
    whole = chain(one, two)
    assert whole.graph.initializers["w"].const_value is one.graph.initializers["w"].const_value
    theirs = whole.graph.initializers["second/w"].const_value.numpy()
    assert np.shares_memory(theirs, two.graph.initializers["w"].const_value.numpy())


def test_by_connection_with_files(tmp_path: Path) -> None:
    one, two = save(model(FIRST), tmp_path / "a.onnx"), save(model(SECOND), tmp_path / "b.onnx")
    whole = chain(one, str(two), connect={"aside": "f"}, prefix="b_")
    assert [v.name for v in whole.graph.inputs] == ["x", "b_bias"]
    assert [v.name for v in whole.graph.outputs] == ["f", "b_y"]
    assert np.allclose(answer(whole, X, np.float32([10]))[1], np.maximum(5 - X, 0) + 10)


@pytest.mark.parametrize("external", [False, True])
def test_weights_in_a_data_file_are_not_read_and_can_be_saved(tmp_path: Path, external: bool) -> None:
    large = model("g (float[N,512] x) => (float[N,512] y) { y = Relu(x) }")
    weight = ir.Value(name="w", const_value=ir.Tensor(np.full((512, 512), 0.5, np.float32), name="w"))
    weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([512, 512])
    large.graph.register_initializer(weight)
    large.graph[0].op_type = "MatMul"
    large.graph[0].resize_inputs(2)
    large.graph[0].replace_input_with(1, weight)
    path = save(large, tmp_path / "part.onnx", external=external)
    whole = chain(path, path)
    if external:
        tensors = [v.const_value for v in whole.graph.initializers.values()]
        assert len(tensors) == 2
        assert all(isinstance(t, ir.ExternalTensor) and t.raw is None for t in tensors)
    saved = load(save(whole, tmp_path / "whole.onnx", external=external))
    x = np.ones((1, 512), np.float32)
    session = ort.InferenceSession(tmp_path / "whole.onnx", providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {"x": x})[0], 512 * 512 / 4)
    assert sorted(saved.graph.initializers) == ["second/w", "w"]


def test_in_order_where_no_name_is_the_same() -> None:
    two = model("h (float[M,3] p, float[M,3] q) => (float[M,3] d) { d = Sub(p, q) }")
    whole = chain(model(FIRST), two)
    assert shapes(whole.graph.outputs) == {"d": ["N", 3]}
    assert np.allclose(answer(whole, X)[0], X * W + X)


def test_dimensions_that_meet_are_one_and_others_keep_apart() -> None:
    one = model("g (float[A,N] a, float[B,N] b) => (float[A,N] p, float[B,N] q) { p = Neg(a)  q = Abs(b) }")
    two = model(
        "h (float[M,4] p, float[M,4] q, float[N,2] z) => (float[M,4] s, float[N,2] t) { s = Add(p, q)  t = Neg(z) }"
    )
    whole = chain(one, two)
    assert shapes(whole.graph.inputs) == {"a": ["B", 4], "b": ["B", 4], "z": ["N_1", 2]}
    assert shapes(whole.graph.outputs) == {"s": ["B", 4], "t": ["N_1", 2]}
    a = np.ones((2, 4), np.float32)
    assert np.array_equal(answer(whole, a, -2 * a, np.ones((5, 2), np.float32))[0], a)


def test_an_output_of_the_second_named_like_one_that_went_into_it() -> None:
    one = model("g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }")
    whole = chain(one, one)
    assert [v.name for v in whole.graph.inputs] == ["x"]
    assert [v.name for v in whole.graph.outputs] == ["y"]
    assert np.array_equal(answer(whole, X)[0], X)
    assert np.array_equal(answer(chain(whole, one), X)[0], -X)


def test_the_lower_opset_is_brought_to_the_higher() -> None:
    one = model("g (float[N,3] x) => (float[N,1] f) { f = ReduceMean<axes = [1]>(x) }", 13)
    two = model("h (float[N,1] f) => (float[N,1] y) { y = Gelu(f) }", 20)
    whole = chain(one, two)
    assert whole.opset_imports[""] == 20
    assert answer(whole, X)[0].shape == (2, 1)
    assert chain(two, model("h (float[N,1] y) => (float[N,1] z) { z = Neg(y) }", 8)).opset_imports[""] == 20
    with pytest.raises(OpsetError):
        chain(model("g (float[N,1] x) => (float[N,1] f) { f = Nonsense(x) }", 8), two)


def test_functions_of_one_name_and_two_bodies_stay_two() -> None:
    one = model("""g (float[N,3] x) => (float[N,3] f) { f = my.F(x) }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { y = Neg(x) }""")
    two = model("""g (float[N,3] f) => (float[N,3] y) { y = my.G(f) }
        <domain: "my", opset_import: ["": 20, "my": 1]> G (x) => (y) { a = my.F(x) y = Add(a, x) }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { y = Abs(x) }""")
    whole = chain(one, two)
    assert sorted(k[1] for k in whole.functions) == ["F", "F_2", "G"]
    assert np.array_equal(answer(whole, X)[0], np.abs(X) - X)
    assert len(merge(one, one, prefix="b_").functions) == 1


def test_names_inside_branches_do_not_clash() -> None:
    one = model("g (float[2,3] x) => (float[2,3] f) { q = Neg(x)  f = Neg(q) }")
    two = model("""h (float[2,3] f, bool c) => (float[2,3] y) {
        y = If (c) <then_branch = t () => (float[2,3] q) { q = Abs(f) },
                    else_branch = e () => (float[2,3] r) { r = Neg(f) }> }""")
    whole = chain(one, two)
    assert not [f for f in lint(whole) if f.rule in ("shadowed-name", "duplicate-name")]
    assert np.array_equal(answer(whole, X, np.array(True))[0], np.abs(X))


def test_the_proof_of_each_is_not_the_proof_of_both() -> None:
    one, two = model(FIRST), model(SECOND)
    one.metadata_props.update({"torchport.proof": "{}", "a": "1"})
    two.metadata_props.update({"torchport.unproven": "x", "a": "2", "b": "3"})
    assert dict(chain(one, two).metadata_props) == {"a": "1", "b": "3"}


def test_annotations_follow_the_names_of_scales() -> None:
    one, two = model(FIRST), model(SECOND)
    next(iter(two.graph)).outputs[0].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "w"}
    proto = ir.to_proto(chain(one, two))
    assert proto.graph.quantization_annotation[0].quant_parameter_tensor_names[0].value == "second/w"


def test_an_old_model_whose_weights_are_inputs() -> None:
    old = model("g (float[N,3] x, float[3] w = {1.0, 2.0, 3.0}) => (float[N,3] y) { y = Mul(x, w) }", 8, ir_version=3)
    assert old.graph.initializers["w"].is_graph_input()
    whole = chain(old, old)
    assert [v.name for v in whole.graph.inputs] == ["x", "w", "second/w"]
    session = ort.InferenceSession(ir.to_proto(whole).SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {"x": X})[0], X * W * W)


def test_side_by_side_shares_the_input() -> None:
    one = model("g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  y = Relu(a) }")
    two = model("h (float[batch,3] x, float[batch] s) => (float[batch,3] z) { a = Exp(x)  z = Neg(a) }")
    both = merge(one, two)
    assert shapes(both.graph.inputs) == {"x": ["N", 3], "s": ["N"]}
    y, z = answer(both, X, np.float32([1, 1]))
    assert np.array_equal(y, np.maximum(-X, 0))
    assert np.allclose(z, -np.exp(X))
    with pytest.raises(InputError, match="both models have 'y'"):
        merge(one, one)
    twice = merge(one, one, prefix="b_")
    assert [v.name for v in twice.graph.inputs] == ["x"]
    assert [v.name for v in twice.graph.outputs] == ["y", "b_y"]
    assert np.array_equal(*answer(twice, X))


def test_side_by_side_with_inputs_of_one_name_that_differ() -> None:
    one = model("g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }")
    two = model("h (float[N,4] x) => (float[N,4] z) { z = Neg(x) }")
    with pytest.raises(InputError, match=r"both models have 'x': float32\[N,3\] in the first, float32\[N_1,4\]"):
        merge(one, two)
    both = merge(one, two, prefix="b_")
    assert shapes(both.graph.inputs) == {"x": ["N", 3], "b_x": ["N_1", 4]}


@pytest.mark.parametrize(
    ("second", "connect", "words"),
    [
        (
            "h (double[M,3] f) => (double[M,3] y) { y = Neg(f) }",
            None,
            r"'f' is float32\[N,3\], input 'f' is float64\[M,3\]",
        ),
        ("h (float[M,4] f) => (float[M,4] y) { y = Neg(f) }", None, r"input 'f' is float32\[M,4\]"),
        ("h (float[M,4] q) => (float[M,4] y) { y = Neg(q) }", None, "say which goes where"),
        ("h (float[M,3] f) => (float[M,3] y) { y = Neg(f) }", {"ff": "f"}, "did you mean f"),
        ("h (float[M,3] f) => (float[M,3] y) { y = Neg(f) }", {"f": "q"}, "no input 'q'"),
        ("h (float[M,3] f) => (float[M,3] y) { y = Neg(f) }", {}, "nothing is connected"),
        ("h (float[M,3] f) => (float[M,3] y) { y = Neg(f) }", {"f": "f", "aside": "f"}, "two outputs go into"),
        ("h (float[M,3] f, float[M,3] x) => (float[M,3] y) { y = Add(f, x) }", None, "prefix"),
        ("h (float[M,3] f) => (float[M,3] aside) { aside = Neg(f) }", None, "both models have 'aside'"),
    ],
)
def test_what_does_not_fit_is_refused(second: str, connect: dict[str, str] | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        chain(model(FIRST), model(second), connect=connect)


def test_a_dimension_that_gets_a_size_has_it_in_expressions_too() -> None:
    head = model("h (float[N,4] a) => (float[M] b) { s = Constant<value_ints = [-1]>()  b = Reshape(a, s) }")
    head.graph.outputs[0].shape = ir.Shape(["4*N"])
    whole = chain(model("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"), head)
    assert list(whole.graph.outputs[0].shape or ()) == [8]


def test_a_dimension_that_is_only_in_an_expression_is_told_apart_too() -> None:
    other = model("h (float[2,M] a) => (float[2,M] b) { b = Relu(a) }")
    for value in (other.graph.inputs[0], other.graph.outputs[0]):
        value.shape = ir.Shape([2, "2*N"])
    both = merge(model("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), other)
    assert [str(v.shape) for v in both.graph.outputs] == ["[N,4]", "[2,2*N_1]"]
