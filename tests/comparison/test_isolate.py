"""Each layer by itself, fed with the reference's tensors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import torchport as tp
from torchport.comparison.result import Comparison, Layer

FEEDS = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
NAMES = ["a", "b", "c", "y"]


def _model(factors: list[float], branch: bool = False) -> ir.Model:
    """A chain of multiplications; with `branch`, the last reads the one before from inside a branch."""
    nodes, weights, here = [], [], "x"
    for name, factor in zip(NAMES, factors, strict=True):
        weights.append(numpy_helper.from_array(np.float32([factor]), f"w_{name}"))
        if branch and name == "y":
            nodes.append(_if(here))
            continue
        nodes.append(helper.make_node("Mul", [here, f"w_{name}"], [name], name=f"n_{name}"))
        here = name
    if branch:
        weights.append(numpy_helper.from_array(np.array(True), "yes"))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 4]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(proto)


def _if(here: str) -> object:
    out = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3, 4])]
    same = [helper.make_node("Mul", [here, "w_y"], ["inner"])]
    return helper.make_node(
        "If",
        ["yes"],
        ["y"],
        name="n_y",
        then_branch=helper.make_graph(same, "then", [], out),
        else_branch=helper.make_graph(same, "else", [], out),
    )


def _layers(reference: ir.Model, candidate: ir.Model, budget: int = 1 << 30) -> dict[str, Layer]:
    found = tp.compare(reference, candidate, FEEDS, isolate=True, budget=budget)
    assert isinstance(found, Comparison)
    return {x.tensor: x for x in found.layers}


def test_only_the_wrong_layer_is_off_when_each_is_fed_the_references_inputs() -> None:
    layers = _layers(_model([2, 3, 4, 5]), _model([2, 3.3, 4, 5]))
    assert [layers[n].check.relative for n in NAMES] == pytest.approx([0, 0.1, 0.1, 0.1])  # type: ignore[union-attr]
    assert [layers[n].isolated.relative for n in NAMES] == pytest.approx([0, 0.1, 0, 0], abs=1e-6)  # type: ignore[union-attr]
    assert [layers[n].state for n in NAMES] == ["agrees", "introduced", "propagated", "propagated"]


def test_two_wrong_layers_are_both_seen() -> None:
    layers = _layers(_model([2, 3, 4, 5]), _model([2, 3.3, 4, 6]))
    alone = [layers[n].isolated.relative for n in NAMES]  # type: ignore[union-attr]
    assert alone == pytest.approx([0, 0.1, 0, 0.2], abs=1e-6)


@pytest.mark.parametrize("budget", [1, 100])
def test_slices_do_not_change_what_is_found(budget: int) -> None:
    models = _model([2, 3, 4, 5]), _model([2, 3.3, 4, 6])
    assert _layers(*models, budget=budget) == _layers(*models)


def test_a_tensor_that_is_read_inside_a_branch_is_given_there_too() -> None:
    layers = _layers(_model([2, 3, 4, 5], branch=True), _model([2, 3.3, 4, 5], branch=True))
    assert layers["y"].check is not None
    assert layers["y"].isolated is not None
    assert layers["y"].check.relative == pytest.approx(0.1)
    assert layers["y"].isolated.relative == pytest.approx(0, abs=1e-6)


def test_isolating_asks_for_layers() -> None:
    found = tp.compare(_model([2, 3, 4, 5]), _model([2, 3, 4, 5]), FEEDS, isolate=True)
    assert isinstance(found, Comparison)
    assert all(x.isolated is not None and x.isolated.max_abs == 0 for x in found.layers)
    assert len(found.layers) == 4


def _centered(axis: int, steps: list[tuple[str, str, str]]) -> ir.Model:
    """Less the mean of the rows, twice; the first has this axis, whatever the shapes inside say."""
    mean = f"mean_{axis}"
    first = [("Neg", "x", "n"), ("ReduceMean", "n axis", mean), ("Sub", f"n {mean}", "off"), ("Exp", "off", "e")]
    nodes = [helper.make_node(op, reads.split(), [made], made) for op, reads, made in [*first, *steps]]
    nodes.append(helper.make_node("Sub", ["e", "h"], ["y"], "last"))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 4]) for n in ("x", "y")]
    stated = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 1]) for n in ("s", "h", mean)]
    numbers = {"one": np.array([1]), "axis": np.array([axis]), "quarter": np.float32(0.25)}
    weights = [numpy_helper.from_array(array, name) for name, array in numbers.items()]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights, value_info=stated)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def test_a_fault_that_changes_a_shape_inside_does_not_stop_isolating() -> None:
    by_sum = [("ReduceSum", "e one", "s"), ("Mul", "s quarter", "h")]
    layers = _layers(_centered(1, [("ReduceMean", "e one", "h")]), _centered(0, by_sum))
    assert [n for n, x in layers.items() if x.isolated and not x.isolated.ok] == ["off"]
