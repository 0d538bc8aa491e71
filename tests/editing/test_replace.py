"""Nodes replaced by others: an operator, text, Python, a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from torchport.editing.replace import replace
from torchport.errors import InputError, OpsetError
from torchport.files.onnx_files import save
from torchport.inspection.lint.linter import lint

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def model(text: str, opset: int = 20) -> ir.Model:
    head = f'<ir_version: 9, opset_import: ["": {opset}, "my": 1]>'
    return ir.from_proto(onnx.parser.parse_model(f"{head} {text}"))


def answer(given: ir.Model, *arrays: Any) -> list[Any]:
    """What onnxruntime computes, once the checker and lint have nothing against the model."""
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in lint(given) if f.severity == "error"] == []
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def content(given: ir.Model) -> bytes:
    return ir.to_proto(given).SerializeToString(deterministic=True)


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


CHAIN = "g (float[2,3] x) => (float[2,3] y) { a = Neg(x)  b = Relu(a)  c = Relu(b)  y = Relu(c) }"


def test_an_operator_takes_the_place_of_every_node_of_another() -> None:
    given = model(CHAIN)
    assert replace(given, "Relu", "LeakyRelu", attributes={"alpha": 1}) == 3
    assert [n.op_type for n in given.graph] == ["Neg", "LeakyRelu", "LeakyRelu", "LeakyRelu"]
    assert np.array_equal(answer(given, X)[0], -X)


def test_attributes_that_the_new_operator_also_has_are_kept_and_none_takes_one_off() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { y = LeakyRelu<alpha = 3.0>(x) }")
    assert replace(given, "LeakyRelu", "Elu") == 1
    assert given.graph[0].attributes["alpha"].value == 3.0
    replace(given, "Elu", "ThresholdedRelu", attributes={"alpha": None})
    assert "alpha" not in given.graph[0].attributes
    assert np.array_equal(answer(given, X)[0], np.where(X > 1, X, 0))


def test_a_node_keeps_its_name_metadata_and_what_its_output_is_called() -> None:
    given = model(CHAIN)
    node = given.graph[1]
    node.name, node.metadata_props["torchport.module"] = "act", "block.act"
    assert replace(given, "act", "(x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }") == 1
    new = list(given.graph)[1:3]
    assert {n.metadata_props["torchport.module"] for n in new} == {"block.act"}
    assert new[1].outputs[0].name == "b"
    assert new[0].outputs[0].shape == [2, 3]
    assert np.allclose(answer(given, X)[0], relu(-X / (1 + np.exp(X))), atol=1e-6)


SWISH = (
    "g (float[N,3] x) => (float[N,3] y) { s = Sigmoid(x)  m = Mul(s, x)  n = Neg(m)  t = Sigmoid(n)  y = Mul(n, t) }"
)


def swish(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def test_text_finds_either_order_of_a_product() -> None:
    given = model(SWISH, 13)
    pattern = "(a) => (b) { h = Sigmoid(a)  b = Mul(a, h) }"
    with pytest.raises(InputError, match="came in opset 14"):
        replace(given, pattern, "HardSwish")
    assert (
        replace(
            given,
            pattern,
            "(a) => (b) { e = Neg(a) f = Exp(e) o = Constant<value = float {1.0}>() g = Add(f, o) b = Div(a, g) }",
        )
        == 2
    )
    assert "Sigmoid" not in [n.op_type for n in given.graph]
    assert np.allclose(answer(given, X)[0], swish(-swish(X)), atol=1e-5)


def test_a_value_used_elsewhere_blocks_a_place_but_not_the_others() -> None:
    text = "{ a = Sigmoid(x)  b = Mul(x, a)  c = Sigmoid(b)  y = Mul(b, c)  z = Neg(a) }"
    given = model(f"g (float[2,3] x) => (float[2,3] y, float[2,3] z) {text}")
    pattern = "(a) => (b) { h = Sigmoid(a)  b = Mul(a, h) }"
    assert replace(given, pattern, "my::Swish") == 1
    assert [n.op_type for n in given.graph] == ["Sigmoid", "Mul", "Swish", "Neg"]
    assert given.opset_imports["my"] == 1
    with pytest.raises(InputError, match=r"a place matches .* 'a' is used by the Neg that makes 'z' too"):
        replace(given, pattern, "my::Swish")


def test_constants_in_a_pattern_are_compared_by_value_and_zero_is_not_nearly_zero() -> None:
    text = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) <float tiny = {1e-8}, float[1] zero = {0.0}> {
        y = Add(x, tiny)  z = Add(zero, x) }"""
    given = model(text)
    pattern = "(x) => (y) { c = Constant<value = float {0.0}>()  y = Add(x, c) }"
    assert replace(given, pattern, "(x) => (x) {}") == 1
    assert [n.op_type for n in given.graph] == ["Add", "Identity"]
    assert list(given.graph.initializers) == ["tiny"]
    assert np.array_equal(answer(given, X)[1], X)


def test_a_python_pattern_tells_zero_from_what_is_near_it_too() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) <float tiny = {1e-8}> { a = Relu(x) y = Add(a, tiny) }")
    with pytest.raises(InputError, match="nothing in the model matches"):
        replace(given, lambda op, x: op.Add(x, 0.0), lambda op, x: op.Identity(x))


def test_attributes_in_the_text_must_match_defaults_included_and_others_may_be_anything() -> None:
    text = "{ a = Softmax(x)  b = Softmax<axis = 0>(a)  y = LeakyRelu<alpha = 0.5>(b) }"
    given = model(f"g (float[2,3] x) => (float[2,3] y) {text}")
    assert replace(given, "(x) => (y) { y = Softmax<axis = -1>(x) }", "LogSoftmax") == 1
    assert replace(given, "(x) => (y) { y = LeakyRelu(x) }", "Relu") == 1
    assert [n.op_type for n in given.graph] == ["LogSoftmax", "Softmax", "Relu"]


def test_a_variable_carries_an_attribute_over() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { a = Neg(x)  y = LeakyRelu<alpha = 0.5>(a) }")
    pattern = "<a> (x) => (y) { n = Neg(x)  y = LeakyRelu<alpha: float = @a>(n) }"
    assert replace(given, pattern, "<a> (x) => (y) { h = Neg(x)  y = Elu<alpha: float = @a>(h) }") == 1
    assert given.graph[1].attributes["alpha"].value == 0.5
    assert np.allclose(answer(given, X)[0], np.where(X < 0, -X, 0.5 * (np.exp(-X) - 1)), atol=1e-6)


def test_branches_and_functions_are_searched() -> None:
    given = model(
        """g (float[2,3] x, bool c) => (float[2,3] y) { a = my.F(x)
            y = If (c) <then_branch = t () => (float[2,3] q) { n = Neg(a)  q = Relu(n) },
                        else_branch = e () => (float[2,3] r) { r = Relu(a) }> }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { n = Neg(x)  y = Relu(n) }"""
    )
    before = answer(given, X, np.array(True))[0]
    plus = "(x) => (y) { z = Constant<value = float {0.0}>()  m = Neg(x)  y = Max(z, m) }"
    assert replace(given, "(x) => (y) { n = Neg(x)  y = Relu(n) }", plus) == 2
    assert sorted(n.op_type for n in given.functions["my", "F", ""]) == ["Constant", "Max", "Neg"]
    assert np.array_equal(answer(given, X, np.array(True))[0], before)
    assert np.array_equal(answer(given, X, np.array(False))[0], relu(-X))


def test_a_pattern_of_two_outputs() -> None:
    given = model(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Sin(x)  a = Neg(y)  b = Cos(x)  z = Add(a, b) }"
    )
    assert (
        replace(
            given,
            "(x) => (s, c) { s = Sin(x)  c = Cos(x) }",
            "(x) => (s, c) { c = Cos(x) n = Neg(x) m = Sin(n) s = Neg(m) }",
        )
        == 1
    )
    y, z = answer(given, X)
    assert np.allclose(y, np.sin(X), atol=1e-6)
    assert np.allclose(z, np.cos(X) - np.sin(X), atol=1e-6)


def test_two_outputs_where_one_leads_back_into_the_other_are_refused() -> None:
    given = model("g (float[2,3] x) => (float[2,3] z) { y = Sin(x)  a = Neg(y)  z = Add(x, a) }")
    with pytest.raises(InputError, match="comes back into it"):
        replace(given, "(x, w) => (s, c) { s = Sin(x)  c = Add(x, w) }", "my::Both")


def test_a_function_in_python_makes_the_nodes() -> None:
    given = model(CHAIN)
    given.graph[3].metadata_props["torchport.module"] = "head"

    def pattern(op: Any, x: Any) -> Any:
        return op.Relu(op.Relu(x))

    def new(op: Any, x: Any) -> Any:
        return op.Clip(x, op.Constant(value_float=0.0), op.Constant(value_float=1.0))

    assert replace(given, pattern, new) == 1
    assert np.array_equal(answer(given, X)[0], np.clip(-X, 0, 1))
    assert replace(given, "Neg", lambda op, x: op.Abs(op.Neg(x))) == 1
    assert np.array_equal(answer(given, X)[0], np.clip(np.abs(X), 0, 1))


def test_a_function_gets_the_attributes_it_names() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) { y = LeakyRelu<alpha = 0.5>(x) }")

    def new(op: Any, x: Any, alpha: Any) -> Any:
        return op.Max(x, op.Mul(x, op.Constant(value_float=alpha.as_float())))

    assert replace(given, "LeakyRelu", new) == 1
    assert np.array_equal(answer(given, X)[0], np.where(X < 0, X / 2, X))


def test_a_text_pattern_gives_its_variables_to_a_function() -> None:
    given = model("g (float[2,3] x, float[3] w) => (float[2,3] y) { h = Neg(x)  y = Mul(w, h) }")
    assert replace(given, "(a, b) => (c) { n = Neg(a)  c = Mul(n, b) }", lambda op, b, a: op.Neg(op.Mul(a, b))) == 1
    assert [n.op_type for n in given.graph] == ["Mul", "Neg"]
    assert np.array_equal(answer(given, X, np.float32([1, 2, 3]))[0], -X * np.float32([1, 2, 3]))


def test_a_model_takes_a_place_with_its_weights_and_functions(tmp_path: Path) -> None:
    part = model(
        """g (float[M,3] i) => (float[M,3] o) <float[3] w = {1.0, 2.0, 3.0}> { h = Mul(i, w)  o = my.F(h) }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { y = Abs(x) }"""
    )
    path = save(part, tmp_path / "part.onnx")
    given = model(
        """g (float[2,3] x) => (float[2,3] y) <float[3] w = {5.0, 5.0, 5.0}> {
            a = Relu(x) b = Mul(a, w) c = my.F(b) y = Relu(c) }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { y = Neg(x) }"""
    )
    assert replace(given, "Relu", str(path)) == 2
    assert {str(k[1]) for k in given.functions} == {"F", "F_2"}
    assert len(given.graph.initializers) == 2
    weight = np.float32([1, 2, 3])
    assert np.allclose(answer(given, X)[0], np.abs(-(np.abs(X * weight) * 5) * weight))
    assert [n.op_type for n in part.graph] == ["Mul", "F"]
    assert list(part.graph.initializers) == ["w"]
    assert part.graph.initializers["w"].const_value.name == "w"


def test_a_model_of_another_opset_is_brought_to_this_one() -> None:
    part = model("g (float[M,3] i) => (float[M,3] o) { o = HardSwish(i) }", 14)
    given = model(CHAIN, 13)
    replace(given, "Neg", part)
    assert given.opset_imports[""] == 13
    assert np.allclose(answer(given, X)[0], relu(X * np.clip(X / 6 + 0.5, 0, 1)), atol=1e-6)
    far = model("g (float[N,1,4,4] i) => (float[N,1,4,4] o) { o = Col2Im(i, i, i) }", 18)
    with pytest.raises(OpsetError, match="cannot be put into a model of opset 13"):
        replace(given, "Relu", far)


def test_inputs_are_chosen_by_position_name_or_number() -> None:
    given = model("g (float[2,3] x) => (float[2,3] y) <float[3] w = {1.0, 2.0, 3.0}> { a = Relu(x) y = Sub(a, w) }")
    assert replace(given, "Sub", "Add", inputs=["#1", "x"]) == 1
    assert np.array_equal(answer(given, X)[0], X + np.float32([1, 2, 3]))
    assert replace(given, "Add", "Mul", inputs=["#1", 2.5]) == 1
    assert np.array_equal(answer(given, X)[0], X * 2.5)


def test_types_come_back_where_an_operator_of_ones_own_had_none() -> None:
    given = model("g (float[2,3] x) => (float[3,2] y) { a = my.Foo(x)  y = Relu(a) }")
    replace(given, "my::Foo", "Transpose")
    assert given.graph[0].outputs[0].shape == [3, 2]
    assert "my" not in given.opset_imports
    assert np.array_equal(answer(given, X)[0], relu(X.T))


def test_an_input_left_out_stays_left_out() -> None:
    given = model("g (float[2,3] x, float m) => (float[2,3] y) { y = Clip(x, , m) }".replace("x, , m", 'x, "", m'))
    assert replace(given, "Clip", "(a, lo, hi) => (o) { h = Neg(a)  k = Neg(h)  o = Clip(k, lo, hi) }") == 1
    assert given.graph[2].inputs[1] is None
    assert np.array_equal(answer(given, X, np.array(0.5, np.float32))[0], np.minimum(X, 0.5))


def test_an_output_left_out_stays_left_out() -> None:
    given = model("""g (float[4,2,3] x) => (float[1,2,1] h) <float[1,4,3] w = {1.0}, float[1,4,1] r = {1.0}>
        { "", h = LSTM<hidden_size = 1>(x, w, r) }""")
    for name, shape in (("w", (1, 4, 3)), ("r", (1, 4, 1))):
        given.graph.initializers[name].const_value = ir.tensor(np.full(shape, 0.5, np.float32), name=name)
    x = np.ones((4, 2, 3), np.float32)
    before = answer(given, x)[0]
    text = "(x, w, r) => (a, b) { n = Neg(x)  m = Neg(n)  a, b = LSTM<hidden_size = 1>(m, w, r) }"
    assert replace(given, "LSTM", text) == 1
    assert [v.name for v in given.graph[2].outputs] == ["", "h"]
    assert np.allclose(answer(given, x)[0], before)
    part = given.clone()
    other = model("g (float[4,2,3] x) => (float[1,2,1] y) <float[1,4,3] w = {1.0}> { y = my.Foo(x, w) }")
    replace(other, "my::Foo", "my::Bar", inputs=["x"])
    assert replace(other, "my::Bar", part) == 1
    assert [v.name for v in other.graph[2].outputs] == ["", "y"]
    assert np.allclose(answer(other, x)[0], before)


@pytest.mark.parametrize(
    ("what", "by", "rest", "words"),
    [
        ("Rellu", "Gelu", {}, "did you mean Relu"),
        ("Relu", "Gellu", {}, "did you mean Gelu"),
        ("Relu", "LeakyRelu", {"attributes": {"alfa": 1.0}}, "did you mean alpha"),
        ("Relu", "LeakyRelu", {"attributes": {"alpha": "much"}}, "cannot be 'much'"),
        ("Relu", "Add", {}, "does not fit"),
        ("Relu", "Add", {"inputs": ["#0", "xx"]}, "no tensor 'xx'"),
        ("Relu", "(x) => (y) { y = Cast<to = 10>(x) }", {}, r"is float32\[2,3\], .* gives float16\[2,3\]"),
        ("Relu", "(x) => (y) { y = Transpose(x) }", {}, r"gives float32\[3,2\]"),
        ("Relu", "(x) => (y) { y = Relu(x }", {}, "line 1, column .*"),
        ("Relu", "(x) => (y) { y = Mul(x, 2.0) }", {}, r"Constant<value = float \{2.0\}>"),
        ("Relu", "(x) => (y) { y = Relu(z) }", {}, "nothing makes 'z'"),
        ("Relu", "(x, w) => (y) { y = Mul(x, w) }", {}, "takes 'x'"),
        ("(x) => (y) { y = Relu(x) }", "(w) => (y) { y = Neg(w) }", {}, "takes 'w'"),
        ("(x) => (y) { y = Tanh(x) }", "Neg", {}, "nothing in the model matches"),
        ("(x) => (y) { y = Relu(x) }", "(x) => (x) {}", {"inputs": ["x"]}, "are for an operator's name"),
        ("Relu", "missing.onnx", {}, "cannot be opened"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(what: Any, by: str, rest: dict[str, Any], words: str) -> None:
    given = model(CHAIN)
    before = content(given)
    with pytest.raises(Exception, match=words) as error:
        replace(given, what, by, **rest)
    assert type(error.value).__module__ == "torchport.errors"
    assert content(given) == before
