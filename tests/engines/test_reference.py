"""The reference engine: old operators computed right, and the node that fails named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

import torchport as tp
from torchport.errors import EngineError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)


def normalization(opset: int, outputs: int = 1, places: tuple[int, ...] = (3,), **attributes: Any) -> ir.Model:
    """Return a model of one BatchNormalization."""
    arrays = {
        "scale": RNG.standard_normal(places),
        "bias": RNG.standard_normal(places),
        "mean": RNG.standard_normal(places),
        "var": RNG.random(places) + 0.5,
    }
    names = ["y", "m", "v", "sm", "sv"][:outputs]
    graph = helper.make_graph(
        [helper.make_node("BatchNormalization", ["x", *arrays], names, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [onnx.numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6))


def reference(model: ir.Model) -> list[np.ndarray]:
    return list(tp.session(model, engine="reference").run({"x": X}).values())


def weights(model: ir.Model) -> dict[str, torch.Tensor]:
    return {n: torch.tensor(v.const_value.numpy()) for n, v in model.graph.initializers.items() if v.const_value}


@pytest.mark.parametrize("opset", [7, 8, 9, 11, 13, 14, 15, 18])
def test_batch_normalization_of_one_output_is_the_inference_form_in_every_opset(opset: int) -> None:
    model = normalization(opset, epsilon=1e-3)
    w = weights(model)
    want = torch.nn.functional.batch_norm(torch.tensor(X), w["mean"], w["var"], w["scale"], w["bias"], eps=1e-3)
    np.testing.assert_allclose(reference(model)[0], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tp.session(model)(X), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("opset", "outputs"), [(7, 5), (9, 5), (9, 3), (14, 3)])
def test_batch_normalization_of_several_outputs_takes_the_batch_s_own_statistics(opset: int, outputs: int) -> None:
    training: dict[str, Any] = {"training_mode": 1} if opset >= 14 else {}
    model = normalization(opset, outputs, momentum=0.8, **training)
    w = weights(model)
    got = reference(model)
    want = torch.nn.functional.batch_norm(torch.tensor(X), None, None, w["scale"], w["bias"], training=True)
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-5)
    means = 0.8 * w["mean"].numpy() + 0.2 * X.mean((0, 2, 3))
    np.testing.assert_allclose(got[1], means, rtol=1e-4, atol=1e-5)
    assert len(got) == outputs


def test_batch_normalization_of_each_place_has_statistics_of_each_place() -> None:
    model = normalization(7, places=X.shape[1:], spatial=0)
    w = {name: value.numpy() for name, value in weights(model).items()}
    want = w["scale"] * (X - w["mean"]) / np.sqrt(w["var"] + 1e-5) + w["bias"]
    np.testing.assert_allclose(reference(model)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shown"), [("add", "node 'add' (Add)"), ("", "the Add that makes 'y'")])
def test_the_node_that_fails_is_named(name: str, shown: str) -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, float[n] z) => (float[2,3] y)'
            "{ r = Relu(x)  y = Add(r, z) }"
        )
    )
    list(model.graph)[1].name = name
    session = tp.session(model, engine="reference")
    with pytest.raises(EngineError) as caught:
        session.run({"x": X[0, 0, :2, :3], "z": np.ones(7, np.float32)})
    assert caught.value.where == shown
    assert caught.value.node == (name or "y")


def test_indices_may_be_shorter_than_the_data_along_the_other_axes() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[3,4] x, int64[2,2] i) => (float[2,2] y)'
            "{ y = GatherElements<axis=1>(x, i) }"
        )
    )
    x, indices = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([[0, -1], [2, 1]])
    want = torch.gather(torch.tensor(x), 1, torch.tensor(indices % 4)).numpy()
    for engine in ("reference", "onnxruntime"):
        np.testing.assert_array_equal(tp.session(model, engine=engine).run({"x": x, "i": indices})["y"], want)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 2)])
def test_a_global_maximum_keeps_every_axis(shape: tuple[int, ...]) -> None:
    dims = ",".join(map(str, shape))
    model = ir.from_proto(
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> g (float[{dims}] x) => (float[a,b,c] y)'
            "{ y = GlobalMaxPool(x) }"
        )
    )
    model.graph.outputs[0].shape = ir.Shape([*shape[:2], *(1 for _ in shape[2:])])
    x = RNG.standard_normal(shape).astype(np.float32)
    got = tp.session(model, engine="reference").run({"x": x})["y"]
    np.testing.assert_array_equal(got, x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_numbers_are_dequantized_in_older_opsets(channels: int) -> None:
    arrays = {
        "s": np.array([0.5, 0.25, 2.0], np.float32)[:channels] if channels > 1 else np.array(0.5, np.float32),
        "z": np.array([3, 128, 0], np.uint8)[:channels] if channels > 1 else np.array(7, np.uint8),
    }
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("q", TensorProto.UINT8, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4])],
        [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    q = RNG.integers(0, 255, (2, 3, 4), dtype=np.uint8)
    got = tp.session(ir.from_proto(made), engine="reference").run({"q": q})["y"]
    np.testing.assert_array_equal(got, tp.session(ir.from_proto(made)).run({"q": q})["y"])
