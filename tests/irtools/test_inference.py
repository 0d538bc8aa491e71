"""Types and shapes of models and nodes, and the values of nodes with known inputs."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import torchport
from torchport.irtools.evaluation import run_node
from torchport.irtools.inference import InferenceError, contradiction, infer_missing, infer_shapes, inferred

LARGE = onnx.parser.parse_model(
    """
    <ir_version: 10, opset_import: ["" : 18]>
    main (float[N,4] x) => (y) <int64[2] target = {-1, 2}> { h = MatMul(x, w)  y = Reshape(h, target) }
    """
)


def _model() -> ir.Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(LARGE)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((4, 512), np.float32), "w"))
    return ir.from_proto(proto)


def test_missing_types_are_filled_in_and_stated_ones_stay() -> None:
    model = _model()
    h, y = model.graph[0].outputs[0], model.graph[1].outputs[0]
    h.shape = ir.Shape(["rows", 512])
    infer_missing(model)
    assert h.shape == ["rows", 512]
    assert h.dtype == y.dtype == ir.DataType.FLOAT
    assert y.shape is not None
    assert y.shape[1] == 2, "small initializers are shown to inference, as they may be shapes"


def test_a_contradiction_is_told_and_gives_no_inferred_model() -> None:
    model = _model()
    assert contradiction(model) is None
    model.graph.inputs[0].shape = ir.Shape([2, 5])
    assert "Incompatible dimensions" in str(contradiction(model))
    infer_missing(model)
    assert inferred(model) is not None, "not strict: what cannot be inferred is left out"
    with pytest.raises(InferenceError):
        infer_shapes(ir.to_proto(model), strict=True)


def test_a_node_is_computed_with_optional_inputs_left_out() -> None:
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    (found,) = run_node(node, [np.float32([1, 5]), None, np.float32(3)], 18, count=1)
    np.testing.assert_array_equal(found, np.float32([1, 3]))


def test_onnx_infers_shapes_in_one_module_only() -> None:
    """Limits on what inference may cost are set there, and hold everywhere."""
    root = Path(torchport.__file__).parent
    users = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "shape_inference"
    }
    assert users == {"irtools/inference.py"}
