"""A model's tensors in slices."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import torchport as tp
from torchport.comparison.intermediates import Layered, Slices
from torchport.engines.registry import faults_of
from torchport.errors import EngineError, InputError

FEEDS = {"x": np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)}


@pytest.fixture(scope="module")
def layered(onnx_file: Path) -> Layered:
    return Layered(onnx_file, "onnxruntime")


def _bytes(layered: Layered, names: list[str]) -> int:
    return sum(a.nbytes for a in layered.run(FEEDS, names).values())


def test_every_tensor_of_the_main_graph_is_there_in_order_of_execution(layered: Layered) -> None:
    made = [str(v.name) for n in layered.model.graph if n.op_type != "Constant" for v in n.outputs]
    assert list(layered.values) == made
    assert set(layered.outputs) == {"logits", "pooled"}
    assert set(layered.outputs) <= set(made)


def test_slices_fit_into_the_budget_and_lose_nothing(layered: Layered) -> None:
    budget = 5000
    pieces = layered.slices(FEEDS, budget, list(layered.values))
    assert [n for piece in pieces for n in piece] == list(layered.values)
    assert len(pieces) > 1
    for piece in pieces:
        assert len(piece) == 1 or _bytes(layered, piece) <= budget


def test_a_tensor_larger_than_the_budget_is_a_slice_by_itself(layered: Layered) -> None:
    assert layered.slices(FEEDS, 1, list(layered.values)) == [[n] for n in layered.values]


def test_slices_hold_the_same_numbers_whatever_the_budget(layered: Layered) -> None:
    whole = next(iter(Slices(layered, FEEDS, 1 << 30)))
    pieces: dict[str, Any] = {}
    for arrays in Slices(layered, FEEDS, 64):
        pieces |= arrays
    assert list(pieces) == list(whole) == list(layered.values)
    assert all(np.array_equal(pieces[n], whole[n]) for n in whole)


def test_what_fits_at_once_is_computed_once(layered: Layered, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = layered.run
    monkeypatch.setattr(layered, "run", lambda feeds, names: (runs.append(len(names)), run(feeds, names))[1])
    slices = Slices(layered, FEEDS, 1 << 30)
    last = list(layered.values)[-1]
    assert len(list(slices)) == 1
    (again,) = slices.only({last})
    assert list(again) == [last]
    assert runs == [len(layered.values)]


def test_slices_say_how_far_they_are(layered: Layered) -> None:
    said: list[str] = []
    count = len(list(Slices(layered, FEEDS, 1, said.append)))
    assert said[-1] == f"comparing {count} layers, slice {count} of {count}"


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_a_sequence_inside_a_model_is_none_of_its_tensors(engine: str) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", [2, 3]), ("y", [1, 1])))
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("SequenceConstruct", ["x", "n"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        helper.make_node("ReduceSum", ["c"], ["y"]),
    ]
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    graph = helper.make_graph(nodes, "g", [x], [y], value_info=[helper.make_value_info("s", kind)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    layered = Layered(ir.from_proto(model), engine)
    assert list(layered.values) == ["n", "c", "y"]
    (arrays,) = Slices(layered, {"x": np.ones((2, 3), np.float32)}, 1 << 20)
    assert arrays["c"].shape == (4, 3)


def test_what_an_engine_raises_is_reported_as_the_engines() -> None:
    with pytest.raises(EngineError, match="the engine 'mine' failed: ZeroDivisionError: by zero"), faults_of("mine"):
        raise ZeroDivisionError("by zero\nmore")
    with pytest.raises(InputError, match="as it was"), faults_of("mine"):
        raise InputError("as it was")


def test_a_model_of_torchs_own_exporter_tells_where_its_nodes_come_from(exported: tp.Exported) -> None:
    model = exported.model.clone()
    for node in model.graph:
        module = node.metadata_props.pop("torchport.module", "")
        node.metadata_props.clear()
        node.metadata_props["pkg.torch.onnx.name_scopes"] = str(["", module, "op"]) if module else "['', 'op']"
    modules = {n.metadata_props.get("torchport.module") for n in Layered(model, "onnxruntime").model.graph}
    assert "fc" in modules


def test_a_comparison_leaves_no_weights_behind_for_the_garbage_collector(tmp_path: Path) -> None:
    size = 1 << 20
    weight = numpy_helper.from_array(np.ones((size // 4, 1), np.float32), "w")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, k]) for n, k in (("x", size // 4), ("y", 1))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weight])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    inputs = {"x": np.ones((1, size // 4), np.float32)}
    tp.compare(path, path, inputs, layers=True)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        tp.compare(path, path, inputs, layers=True)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < size
