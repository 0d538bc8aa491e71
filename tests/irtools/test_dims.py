"""Dimensions: names that are names, expressions of them, renamed and evaluated."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from torchport.editing.rename import rename
from torchport.editing.shapes import set_dim
from torchport.inspection.describe import describe
from torchport.irtools.dims import Dims, free_roots, input_dims, is_placeholder, names_in
from torchport.irtools.shapes import Shapes
from torchport.verification.equivalence import prove_same

EXPRESSIONS = ["2*n + 1", "floor(h/2)", "Max(1, n)", "a/b/c", "s0 // 2", "(h//2) + 1", "-n", "Mod(n, 2)"]
STRANGE = ["?", "a/b/c", "DynamicDimension.0", "unk__123", "batch size", "2*n", "batch-size", "-1", "None", "x:0", "é"]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_names_in_an_expression_are_those_onnx_ir_finds(text: str) -> None:
    names = ir.SymbolicDim(text).free_symbols()
    assert names_in(text) == names
    assert Dims(names).symbols(text) == names


@pytest.mark.parametrize("text", [*EXPRESSIONS, "?", "a[0]", "x y", "a,b", "1+", "foo(", "1/0", "n**99999999"])
def test_a_text_is_a_name_unless_the_inputs_have_all_names_in_it(text: str) -> None:
    assert Dims([text, "other"]).symbols(text) == {text}
    assert Dims([text]).size(text, {text: 3}) == 3
    assert Dims([text]).evaluated(text, {"n": 3}) == text
    assert str(Dims([text]).size(text, {}))


def test_names_are_replaced_but_not_functions() -> None:
    assert Dims(["n", "Max"]).renamed("Max(n, Max)", {"n": "m"}) == "Max(m, Max)"
    assert Dims(["a,b"]).renamed("a,b", {"a,b": "c"}) == "c"
    assert Dims(["a/b"]).renamed("a/b", {"a": "c"}) == "a/b"


@pytest.mark.parametrize(
    ("text", "expected"), [("n", 3), ("2*n + 1", 7), ("n + m", "m + 3"), ("m", "m"), ("a[0]", "a[0]"), ("x y", "x y")]
)
def test_known_sizes_are_put_in(text: str, expected: int | str) -> None:
    assert Dims(["n", "m"]).evaluated(text, {"n": 3}) == expected


def test_a_root_that_no_axis_has_by_itself_is_found() -> None:
    assert free_roots({"2*half", "n", "n + 1", "batch size"}) == ["half"]
    assert Dims(["2*half"], roots=["half"]).symbols("2*half") == {"half"}


def test_axes_that_share_a_placeholder_are_told_apart() -> None:
    assert [is_placeholder(text) for text in ("?", "-1", "None", "dynamic", "n", "unk__1")] == [True] * 4 + [False] * 2
    found = input_dims([("x", ["?", 3, "?"]), ("y", ["n", None])])
    assert found == {("x", 0): "x:0", ("x", 2): "x:2", ("y", 0): "n", ("y", 1): "y:1"}


# --- files with such names --------------------------------------------------------------------------------------------


def dense(dim: str, output: str | None = None, inner: str | None = None) -> onnx.ModelProto:
    """Return ``relu(x @ w) + 1`` with `dim` as the name of its rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "one"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w"),
        onnx.numpy_helper.from_array(np.ones(3, np.float32), "one"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [dim, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [output or dim, 3])],
        weights,
        value_info=[helper.make_tensor_value_info("h", TensorProto.FLOAT, [inner, 3])] if inner else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dim", STRANGE)
def test_a_model_is_described_with_any_name(dim: str) -> None:
    found = describe(ir.from_proto(dense(dim)), at={dim: 5})
    assert found.symbols == (dim,)
    assert found.cost_at is not None
    assert found.cost_at.multiply_adds == 5 * 4 * 3


@pytest.mark.parametrize("dim", STRANGE)
def test_a_dimension_of_any_name_is_varied_by_verify_renamed_and_fixed(dim: str) -> None:
    model = ir.from_proto(dense(dim))
    proof = prove_same(model.clone(), model)
    assert proof.passed
    assert len({case.sizes[dim] for case in proof.cases}) >= 3
    renamed = model.clone()
    assert rename(renamed, {dim: "rows"}, kind="dim") >= 2
    assert str(renamed.graph.inputs[0].shape) == "[rows,4]"
    set_dim(model, dim, 6)
    assert [str(v.shape) for v in (model.graph.inputs[0], model.graph.outputs[0])] == ["[6,4]", "[6,3]"]


@pytest.mark.parametrize("inner", ["unk__12", "?", "m", "batch size"])
def test_names_that_no_input_has_give_way_to_those_of_the_inputs(inner: str) -> None:
    found = describe(ir.from_proto(dense("n", output="out", inner=inner)))
    assert str(found.cost.multiply_adds) == "12·n"
    assert found.symbols == ("n",)


def test_an_expression_over_names_of_the_inputs_is_arithmetic() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]>'
            "g (float[n,4] x, float[m,4] z) => (float[s,4] y) { y = Concat<axis=0>(x, z) }"
        )
    )
    model.graph.outputs[0].shape = ir.Shape(["n + m", 4])
    assert Shapes(model, {"n": 2, "m": 3}).of(model.graph.outputs[0]) == (5, 4)
    set_dim(model, "n", 2)
    assert str(model.graph.outputs[0].shape) == "[m + 2,4]"


def test_an_input_that_is_as_long_as_two_others_is_varied_with_them() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]>'
            "g (float[n,4] x, float[m,4] z, float[s,4] mask) => (float[s,4] y)"
            "{ c = Concat<axis=0>(x, z)  y = Mul(c, mask) }"
        )
    )
    for value in (model.graph.inputs[2], model.graph.outputs[0]):
        value.shape = ir.Shape(["n + m", 4])
    proof = prove_same(model.clone(), model)
    assert proof.passed
    assert {case.sizes["n"] for case in proof.cases if case.verdict == "pass"} >= {1, 2, 5}
