"""Built nodes are named, typed and keep the origin of the node they stand for."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from torchport.irtools.builder import Builder, Steps
from torchport.irtools.metadata import MODULE
from torchport.irtools.names import FreshNames


@pytest.fixture
def model() -> ir.Model:
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }'
    found = ir.from_proto(onnx.parser.parse_model(text))
    found.graph[0].metadata_props[MODULE] = "act"
    return found


def test_a_builder_types_names_and_marks_each_node(model):
    b = Builder(model.graph[0], 18, FreshNames(model).fresh)
    (x,) = model.graph.inputs
    mean = b.reduce("ReduceMean", x, [-1])
    total = b.op("Sub", x, b.cast(mean, ir.DataType.FLOAT))
    assert [n.op_type for n in b.nodes] == ["Constant", "ReduceMean", "Sub"]
    assert total.shape == ["N", 4]
    assert mean.dtype == ir.DataType.FLOAT
    assert {n.metadata_props[MODULE] for n in b.nodes} == {"act"}
    assert len({v.name for n in b.nodes for v in n.outputs} | {"x", "y"}) == 5


def test_a_builder_that_fails_lets_go_of_its_inputs(model):
    (x,) = model.graph.inputs
    b = Builder(model.graph[0], 18, FreshNames(model).fresh)
    with pytest.raises(KeyError), b:
        {}[b.op("Neg", x)]
    assert [use.node.op_type for use in x.uses()] == ["Relu"]


def test_steps_take_operators_as_methods_and_numbers_as_constants(model):
    node, (x,) = model.graph[0], model.graph.inputs
    steps = Steps(node)
    result = steps.Add(steps.Mul(x, 0.5), steps.Reshape(x, [0, 4]))
    steps.replace(result)
    assert [n.op_type for n in model.graph] == ["Constant", "Mul", "Constant", "Reshape", "Add"]
    assert [n.outputs[0].dtype for n in model.graph if n.op_type == "Constant"] == [
        ir.DataType.FLOAT,
        ir.DataType.INT64,
    ]
    assert model.graph.outputs[0].name == "y"
    assert model.graph[1].outputs[0].name == "y.part1"
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
