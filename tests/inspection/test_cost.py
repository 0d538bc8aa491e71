"""Multiply-adds and memory, against numbers worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from torchport.inspection.cost import Cost, measure
from torchport.irtools.dims import Dims
from torchport.irtools.polynomials import Amount
from torchport.terminal import human, human_bytes

FLOAT = TensorProto.FLOAT


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 23,
    **rest: Any,
) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10, **rest))


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def cost_of(op: str, inputs: dict[str, list[Any]], weights: dict[str, np.ndarray] | None = None, **rest: Any) -> Cost:
    sizes = rest.pop("sizes", None)
    names = rest.pop("order", [*inputs, *(weights or {})])
    node = helper.make_node(op, names, ["y"], **rest)
    return measure(model_of([node], inputs, ["y"], weights), sizes)


def symbols(**powers: int) -> Amount:
    return Amount({tuple(sorted(powers.items())): 1})


BATCH = symbols(batch=1)


def test_a_convolution_takes_its_kernel_for_each_number_that_comes_out() -> None:
    cost = cost_of("Conv", {"x": ["batch", 3, 32, 32]}, {"w": zeros(16, 3, 3, 3)}, strides=[2, 2], pads=[1, 1, 1, 1])
    assert cost.multiply_adds == BATCH * (16 * 16 * 16 * 3 * 3 * 3)
    assert cost.activations == BATCH * (16 * 16 * 16 * 4)


def test_a_grouped_convolution_takes_the_channels_of_its_group() -> None:
    cost = cost_of("Conv", {"x": [1, 8, 10, 10]}, {"w": zeros(8, 1, 3, 3)}, group=8)
    assert cost.multiply_adds == 8 * 8 * 8 * 9


def test_a_transposed_convolution_spreads_each_number_that_goes_in() -> None:
    cost = cost_of("ConvTranspose", {"x": [2, 4, 5, 5]}, {"w": zeros(4, 6, 2, 2)}, strides=[2, 2])
    assert cost.multiply_adds == (2 * 4 * 5 * 5) * (6 * 2 * 2)


@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm_takes_rows_by_columns_by_depth(turned: int) -> None:
    shape = [7, "batch"] if turned else ["batch", 7]
    cost = cost_of("Gemm", {"x": shape}, {"w": zeros(7, 5)}, transA=turned)
    assert cost.multiply_adds == BATCH * (7 * 5)


def test_a_matrix_product_counts_its_batches() -> None:
    cost = cost_of("MatMul", {"a": ["batch", 4, "length", 8], "b": ["batch", 4, 8, "length"]})
    assert cost.multiply_adds == symbols(batch=1, length=2) * (4 * 8)


def test_a_product_of_vectors_is_their_length() -> None:
    assert cost_of("MatMul", {"a": [9], "b": [9]}).multiply_adds == 9


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_layer_takes_all_its_weights_at_each_step(op: str, gates: int) -> None:
    weights = {"w": zeros(2, gates * 6, 5), "r": zeros(2, gates * 6, 6)}
    cost = cost_of(op, {"x": ["time", "batch", 5]}, weights, hidden_size=6, direction="bidirectional")
    assert cost.multiply_adds == symbols(batch=1, time=1) * (2 * gates * 6 * (5 + 6))


def test_attention_is_queries_by_keys_and_scores_by_values() -> None:
    shapes = {"q": ["batch", 8, 10, 16], "k": ["batch", 8, 12, 16], "v": ["batch", 8, 12, 20]}
    assert cost_of("Attention", shapes).multiply_adds == BATCH * (8 * 10 * 12 * (16 + 20))


def test_attention_on_hidden_sizes_knows_its_heads_and_its_past() -> None:
    shapes = {"q": [2, 10, 64], "k": [2, 12, 32], "v": [2, 12, 32], "pk": [2, 2, 5, 16], "pv": [2, 2, 5, 16]}
    cost = cost_of("Attention", shapes, order=["q", "k", "v", "", "pk", "pv"], q_num_heads=4, kv_num_heads=2)
    assert cost.multiply_adds == 2 * 4 * 10 * (12 + 5) * (16 + 16)


@pytest.mark.parametrize(
    ("equation", "expected"), [("bij,bjk->bik", 2 * 3 * 4 * 5), ("...ij,...jk->...ik", 2 * 3 * 4 * 5)]
)
def test_an_einsum_takes_every_combination_of_its_letters(equation: str, expected: int) -> None:
    cost = cost_of("Einsum", {"a": [2, 3, 4], "b": [2, 4, 5]}, equation=equation)
    assert cost.multiply_adds == expected


def test_a_product_with_weights_of_four_bits_counts_as_any() -> None:
    cost = cost_of("MatMulNBits", {"x": [3, 64]}, {"w": zeros(32, 1)}, domain="com.microsoft", K=64, N=32, bits=4)
    assert cost.multiply_adds == 3 * 32 * 64


def test_an_operator_of_ones_own_costs_nothing_known() -> None:
    cost = cost_of("Conv", {"x": [1, 3]}, domain="mine")
    assert (cost.multiply_adds, cost.unsized) == (0, ("y",))


def halves(size: Any = "height") -> ir.Model:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    weights = {"w": zeros(8, 3, 3, 3), "v": zeros(4, 8, 3, 3)}
    return model_of(nodes, {"x": [1, 3, size, size]}, ["y"], weights)


def test_a_height_that_is_halved_is_near_in_symbols_and_exact_at_a_size() -> None:
    """onnx infers nothing of a symbolic height behind a convolution."""
    cost = measure(halves())
    pixels = Fraction(8 * 27, 4) + Fraction(4 * 72, 16)
    assert cost.multiply_adds == symbols(height=2) * pixels
    assert str(cost.multiply_adds) == "≈ 72·height²"
    assert measure(halves(), {"height": 31}).multiply_adds == 16 * 16 * 8 * 27 + 8 * 8 * 4 * 72
    assert measure(halves(31)).multiply_adds == 16 * 16 * 8 * 27 + 8 * 8 * 4 * 72


def test_symbols_agree_with_numbers_at_multiples_of_the_strides() -> None:
    symbolic = measure(halves()).multiply_adds
    assert isinstance(symbolic, Amount)
    assert symbolic.at(height=64) == measure(halves(), {"height": 64}).multiply_adds


def test_some_sizes_may_be_given_and_others_left() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], {"x": ["batch", "length", 4]}, ["y"], {"w": zeros(4, 5)})
    assert measure(model, {"batch": 3}).multiply_adds == symbols(length=1) * (3 * 20)


def test_a_dimension_without_a_name_is_called_by_its_input_and_axis() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], {"x": [None, 4]}, ["y"], {"w": zeros(4, 5)})
    assert str(measure(model).multiply_adds) == "20·x:0"
    assert measure(model, {"x:0": 6}).multiply_adds == 120


def test_memory_is_what_lives_at_once() -> None:
    """x (40) all along; a (40), then a and b (80), then a, b and y (120), as a is needed by the last."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    cost = measure(model_of(nodes, {"x": [10]}, ["y"]))
    assert (cost.peak, cost.activations) == (40 + 120, 120)


def test_a_chain_holds_two_values_at_a_time() -> None:
    nodes = [helper.make_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(5)]
    cost = measure(model_of(nodes, {"v0": ["batch", 10]}, ["v5"]))
    assert (cost.peak, cost.activations) == (BATCH * (40 + 80), BATCH * 200)


def body(name: str, width: int) -> onnx.GraphProto:
    weight = numpy_helper.from_array(zeros(4, width), f"w_{name}")
    back = numpy_helper.from_array(zeros(width, 4), f"b_{name}")
    nodes = [
        helper.make_node("MatMul", ["x", f"w_{name}"], [f"h_{name}"]),
        helper.make_node("MatMul", [f"h_{name}", f"b_{name}"], [f"y_{name}"]),
    ]
    out = helper.make_tensor_value_info(f"y_{name}", FLOAT, ["batch", 4])
    return helper.make_graph(nodes, name, [], [out], [weight, back])


def test_of_two_branches_the_dearer_counts() -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=body("thin", 2), else_branch=body("wide", 50))
    model = model_of([node], {"x": ["batch", 4]}, ["y"], {"c": np.array(True)})
    cost = measure(model)
    assert cost.multiply_adds == BATCH * (2 * 4 * 50)
    assert cost.by_operator == {"MatMul": BATCH * 400}
    assert "the dearer one is counted" in cost.notes[0]


def loop(trips: dict[str, np.ndarray], *inputs: str) -> ir.Model:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["s_in", "w"], ["s_out"]),
            helper.make_node("Identity", ["c_in"], ["c_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s_in", FLOAT, [3, 4]),
        ],
        [
            helper.make_tensor_value_info("c_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s_out", FLOAT, [3, 4]),
        ],
    )
    node = helper.make_node("Loop", list(inputs), ["y"], name="again", body=graph)
    return model_of([node], {"x": [3, 4]}, ["y"], {"w": zeros(4, 4), **trips})


def test_a_loop_counts_its_turns_if_they_are_known() -> None:
    known = measure(loop({"n": np.array(7), "c": np.array(True)}, "n", "c", "x"))
    assert known.multiply_adds == 7 * 3 * 4 * 4
    unknown = measure(loop({"c": np.array(True)}, "", "c", "x"))
    assert unknown.multiply_adds == 3 * 4 * 4
    assert "'again' is counted once" in unknown.notes[0]


def test_a_scan_turns_as_often_as_its_input_is_long() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["row", "w"], ["out"])],
        "body",
        [helper.make_tensor_value_info("row", FLOAT, [2, 4])],
        [helper.make_tensor_value_info("out", FLOAT, [2, 4])],
    )
    node = helper.make_node("Scan", ["x"], ["y"], body=graph, num_scan_inputs=1)
    cost = measure(model_of([node], {"x": ["time", 2, 4]}, ["y"], {"w": zeros(4, 4)}))
    assert cost.multiply_adds == symbols(time=1) * (2 * 4 * 4)


def test_a_local_function_counts_at_each_place_it_is_called() -> None:
    function = helper.make_function(
        "mine", "Square", ["a"], ["b"], [helper.make_node("MatMul", ["a", "a"], ["b"])], [helper.make_opsetid("", 23)]
    )
    nodes = [
        helper.make_node("Square", ["x"], ["h"], domain="mine"),
        helper.make_node("Square", ["h"], ["y"], domain="mine"),
    ]
    model = model_of(nodes, {"x": [6, 6]}, ["y"], functions=[function])
    assert measure(model).multiply_adds == 2 * 6**3
    assert len(model.functions) == 1


# --- amounts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown", "at_31"),
    [
        ("h", "h", 31),
        ("(h//2)", "≈ 0.5·h", 15),
        ("((h - 1)//2) + 1", "≈ 0.5·h", 16),
        ("112*((h//4))", "≈ 28·h", 784),
        ("2*h + 1", "2·h + 1", 63),
        ("h*h", "h²", 961),
    ],
)
def test_a_dimension_is_read_as_torch_writes_it(text: str, shown: str, at_31: int) -> None:
    assert str(Dims(["h"]).size(text, {})) == shown
    assert Dims(["h"]).size(text, {"h": 31}) == at_31


@pytest.mark.parametrize("text", ["a b", "x:0", "1/0", "((((", "h**99999999", "é", "f(x)"])
def test_any_text_may_be_the_name_of_a_dimension(text: str) -> None:
    assert Dims([text]).size(text, {text: 3}) == 3
    assert str(Dims([text]).size(text, {}))


def test_numbers_are_shown_short() -> None:
    assert [human(n) for n in (0, 7, 999, 1000, 1_620_000, 2.5e12)] == ["0", "7", "999", "1k", "1.62M", "2.5T"]
    assert [human_bytes(n) for n in (12, 2048, 3 * 2**20)] == ["12 B", "2 KiB", "3 MiB"]
    assert str(BATCH * 1_200_000) == "1.2M·batch"
