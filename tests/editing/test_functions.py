"""Local functions written out, and made of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from torchport.editing.functions import inline, outline
from torchport.errors import InputError
from torchport.inspection.lint.linter import lint

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def model(text: str, opset: int = 20) -> ir.Model:
    head = f'<ir_version: 9, opset_import: ["": {opset}, "my": 1]>'
    return ir.from_proto(onnx.parser.parse_model(f"{head} {text}"))


def answer(given: ir.Model, *arrays: Any) -> list[Any]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in lint(given) if f.severity == "error"] == []
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def content(given: ir.Model) -> bytes:
    return ir.to_proto(given).SerializeToString(deterministic=True)


NESTED = """g (float[2,3] x, bool c) => (float[2,3] y) {
    t = my.G(x)
    u = my.F<k = 3.0>(t)
    y = If (c) <then_branch = a () => (float[2,3] n) { n = my.F(u) },
                else_branch = b () => (float[2,3] m) { h = Neg(u)  m = my.G(h) }> }
<domain: "my", opset_import: ["": 20]> F <k: float = 2.0> (x) => (y) { n = LeakyRelu<alpha: float = @k>(x)  y = Neg(n) }
<domain: "my", opset_import: ["": 20, "my": 1]> G (x) => (y) { n = my.F<k = 5.0>(x)  y = Abs(n) }"""


def leaky(x: Any, k: float) -> Any:
    return -np.where(x < 0, k * x, x)


def nested(c: bool) -> Any:
    u = leaky(np.abs(leaky(X, 5)), 3)
    return leaky(u, 2) if c else np.abs(leaky(-u, 5))


def test_all_functions_are_written_out_with_their_parameters_and_defaults() -> None:
    given = model(NESTED)
    given.graph[0].metadata_props["torchport.module"] = "block"
    assert inline(given) == 4
    assert not given.functions
    assert "my" not in given.opset_imports
    assert given.graph[0].metadata_props["torchport.module"] == "block"
    assert given.graph[0].outputs[0].shape == [2, 3]
    assert not [f for f in lint(given) if f.rule in ("shadowed-name", "duplicate-name", "duplicate-node-name")]
    for c in (True, False):
        assert np.allclose(answer(given, X, np.array(c))[0], nested(c))


def test_one_function_is_written_out_and_the_others_stay() -> None:
    given = model(NESTED)
    assert inline(given, "my::F") == 3
    assert [k[1] for k in given.functions] == ["G"]
    assert np.allclose(answer(given, X, np.array(False))[0], nested(False))


def test_an_input_that_a_function_gives_back_keeps_its_name() -> None:
    given = model("""g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y, z = my.F(x) }
        <domain: "my", opset_import: ["": 20]> F (x) => (x, n) { n = Neg(x) }""")
    assert inline(given) == 1
    assert given.graph.inputs[0].name == "x"
    y, z = answer(given, X)
    assert np.array_equal(y, X)
    assert np.array_equal(z, -X)


def test_an_input_that_is_left_out_stays_left_out() -> None:
    given = model("""g (float[2,3] x, float m) => (float[2,3] y) { y = my.F(x, "", m) }
        <domain: "my", opset_import: ["": 20]> F (x, lo, hi) => (y) { n = Neg(x)  y = Clip(n, lo, hi) }""")
    inline(given)
    assert given.graph[1].inputs[1] is None
    assert np.array_equal(answer(given, X, np.array(0.5, np.float32))[0], np.minimum(-X, 0.5))


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (NESTED, "my::H", r"did you mean my::"),
        ("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }", "F", "it has none"),
        (
            """g (float[2,3] x) => (float[2,3] y) { y = my.F(x) }
            <domain: "my", opset_import: ["": 20, "my": 1]> F (x) => (y) { y = my.G(x) }
            <domain: "my", opset_import: ["": 20, "my": 1]> G (x) => (y) { y = my.F(x) }""",
            None,
            "in a circle: my::",
        ),
        (
            """g (float[2,3] x) => (float[2,1] y) { y = my.F(x) }
            <domain: "my", opset_import: ["": 13]> F (x) => (y) { y = ReduceMean<axes = [1]>(x) }""",
            None,
            "is of opset 13, its caller of 20, and ReduceMean changed",
        ),
    ],
)
def test_what_cannot_be_written_out_is_refused_and_changes_nothing(text: str, name: str | None, words: str) -> None:
    given = model(text)
    before = content(given)
    with pytest.raises(InputError, match=words):
        inline(given, name)
    assert content(given) == before


def layers(count: int, *, odd: int | None = None) -> ir.Model:
    """A network of layers that have the same build and weights of their own; `odd` has another attribute."""
    weights, steps, before = [], [], "x"
    for n in range(count):
        weights += [
            f"float[3,3] w{n} = {{{', '.join(str(float(n + i)) for i in range(9))}}}",
            f"int64[2] s{n} = {{-1, 3}}",
        ]
        axis = 0 if n == odd else -1
        steps += [
            f"a{n} = MatMul({before}, w{n})",
            f"r{n} = Reshape(a{n}, s{n})",
            f"b{n} = Softmax<axis = {axis}>(r{n})",
        ]
        steps.append(f"{'y' if n == count - 1 else f'c{n}'} = Add({before}, b{n})")
        before = f"c{n}"
    made = model(f"g (float[N,3] x) => (float[N,3] y) <{', '.join(weights)}> {{ {'  '.join(steps)} }}")
    for index, node in enumerate(made.graph):
        node.name = f"n{index}"
        node.metadata_props["torchport.module"] = f"net.layers.{index // 4}.{'att' if index % 4 < 3 else 'add'}"
    return made


def test_layers_of_one_build_become_calls_of_one_function() -> None:
    given = layers(3)
    before = answer(given, X)[0]
    assert outline(given, "module:net.layers.*", "my::Layer") == 3
    assert [n.op_type for n in given.graph] == ["Layer"] * 3
    assert [n.metadata_props["torchport.module"] for n in given.graph] == [f"net.layers.{n}" for n in range(3)]
    function = given.functions["my", "Layer", ""]
    assert {n.metadata_props["torchport.module"] for n in function if n.op_type != "Constant"} == {"att", "add"}
    assert sorted(given.graph.initializers) == ["w0", "w1", "w2"]
    assert given.graph[0].outputs[0].dtype == ir.DataType.FLOAT
    assert given.graph[0].outputs[0].shape[1] == 3
    assert np.allclose(answer(given, X)[0], before, atol=1e-6)
    assert inline(given) == 3
    assert np.allclose(answer(given, X)[0], before, atol=1e-6)


def test_what_the_first_layer_computes_for_all_stays_outside() -> None:
    given = model("""g (float[N,3] x) => (float[N,3] y) <int64 one = {1}> {
        s = Shape(x)  d = Gather(s, one)  f = Cast<to = 1>(d)
        a = Div(x, f)  b = Relu(a)  c = Div(b, f)  y = Relu(c) }""")
    for index, node in enumerate(given.graph):
        node.metadata_props["torchport.module"] = f"layers.{0 if index < 5 else 1}"
    before = answer(given, X)[0]
    assert outline(given, "module:layers.*", "my::Layer") == 2
    assert [n.op_type for n in given.graph] == ["Shape", "Gather", "Cast", "Layer", "Layer"]
    assert np.allclose(answer(given, X)[0], before)


def test_the_same_nodes_elsewhere_are_found() -> None:
    given = layers(3)
    before = answer(given, X)[0]
    assert outline(given, ["n0", "n1", "n2"], "Attention") == 3
    assert list(given.functions) == [("local", "Attention", "")]
    assert np.allclose(answer(given, X)[0], before, atol=1e-6)


def test_a_module_that_differs_is_no_call_or_refused_where_it_was_asked_for() -> None:
    given = layers(3, odd=1)
    before = content(given)
    with pytest.raises(InputError, match=r"net.layers.0 and net.layers.1 are not built alike"):
        outline(given, "module:net.layers.*", "my::Layer")
    assert content(given) == before
    assert outline(given, "module:net.layers.0", "my::Layer") == 2
    assert [n.op_type for n in given.graph if n.op_type in ("Layer", "Add")] == ["Layer", "Add", "Layer"]


def test_several_outputs_and_a_branch_that_uses_outer_values() -> None:
    given = model("""g (float[2,3] x, bool c) => (float[2,3] y, float[2,3] z) {
        a = Neg(x)  b = Abs(a)
        d = If (c) <then_branch = t () => (float[2,3] q) { q = Add(a, x) },
                    else_branch = e () => (float[2,3] r) { r = Neg(b) }>
        y = Relu(d)  z = Exp(b) }""")
    for node in given.graph:
        node.name = f"n_{node.outputs[0].name}"
    before = answer(given, X, np.array(False))
    assert outline(given, ["n_b", "n_d"], "my::Part") == 1
    assert [n.op_type for n in given.graph] == ["Neg", "Part", "Relu", "Exp"]
    for one, other in zip(answer(given, X, np.array(False)), before, strict=True):
        assert np.allclose(one, other)


@pytest.mark.parametrize(
    ("nodes", "name", "words"),
    [
        (["n0", "n3"], "my::F", r"'a0' → 'r0' → 'b0'"),
        ("module:net.layer.*", "my::F", "did you mean net.layers"),
        (["n0", "nn"], "my::F", "no node or operator 'nn'"),
        ([], "my::F", "no nodes were named"),
        ("n0", "ai.onnx::F", "cannot be called"),
        ("n0", "my::F G", "cannot be called"),
    ],
)
def test_what_cannot_be_a_function_is_refused_and_changes_nothing(nodes: Any, name: str, words: str) -> None:
    given = layers(2)
    before = content(given)
    with pytest.raises(InputError, match=words):
        outline(given, nodes, name)
    assert content(given) == before


def test_a_name_that_is_taken_is_refused() -> None:
    given = layers(2)
    outline(given, "n0", "my::F")
    with pytest.raises(InputError, match="has a function 'my::F' already"):
        outline(given, "n1", "my::F")
