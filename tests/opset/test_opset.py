"""What stays when a model gets another opset: origins, names, shapes, weights and functions."""

# ruff: noqa: E501  (a model is written as one line of onnx's text form)

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from conversions import assert_same, check_conversion, floats, parse, run

from torchport.opset import convert


def test_origins_names_and_shapes_stay() -> None:
    text = "g (float[B,4] x, float[4] s) => (float[B,4] y) { h = LayerNormalization(x, s) y = Relu(h) }"
    model = parse(text, 17)
    norm = model.graph[0]
    norm.name = "encoder.norm"
    norm.metadata_props["pkg.torch.onnx.stack_trace"] = "File model.py, line 7"
    converted = convert.convert(model, 13)
    new = [n for n in converted.graph if n.op_type != "Relu"]
    assert len(new) > 5
    assert all(n.metadata_props["pkg.torch.onnx.stack_trace"].endswith("line 7") for n in new)
    assert converted.graph[-1].inputs[0].name == "h"
    assert all(v.dtype is not None and v.shape is not None for n in converted.graph for v in n.outputs)
    names = [v.name for n in converted.graph for v in n.outputs] + [n.name for n in converted.graph]
    assert len(names) == len(set(names))


def test_weights_are_shared_and_not_copied() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}> { y = Add(x, w) }", 18)
    converted = convert.convert(model, 13)
    assert converted.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
g (float[2,3] x) => (float[2] y, float[2,3] z) {{ y = local.mean_last (x) z = local.{second} (x) }}
<domain: "local", opset_import: ["" : 18]>
mean_last (x) => (y) {{ a = Constant<value = int64[1] {{-1}}>() y = ReduceMean<keepdims=0>(x, a) }}
<domain: "local", opset_import: ["" : 18]>
squash (x) => (y) {{ t = Mul(x, x) y = Mish(t) }}
<domain: "local", opset_import: ["" : 18]>
turn (x) => (y) {{ y = Softmax<axis=0>(x) }}
"""


def test_local_functions_are_converted() -> None:
    model = ir.from_proto(onnx.parser.parse_model(FUNCTIONS.format(second="squash")))
    feeds = {"x": floats(2, 3)}
    check_conversion(model, feeds, (17, 20))
    converted = convert.convert(model, 17)
    assert len(converted.functions) == 3
    assert {f.opset_imports[""] for f in converted.functions.values()} == {17}
    assert converted.ir_version == 8


def test_a_function_whose_types_are_needed_is_inlined() -> None:
    model = ir.from_proto(onnx.parser.parse_model(FUNCTIONS.format(second="turn")))
    check_conversion(model, {"x": floats(2, 3)}, (12, 9))
    assert not convert.convert(model, 12).functions


def test_a_function_of_another_opset_is_carried_by_itself() -> None:
    text = FUNCTIONS.format(second="squash").replace(
        'opset_import: ["" : 18]>\nmean_last (x) => (y) { a = Constant<value = int64[1] {-1}>() y = ReduceMean<keepdims=0>(x, a) }',
        'opset_import: ["" : 13]>\nmean_last (x) => (y) { y = ReduceMean<keepdims=0, axes=[-1]>(x) }',
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert {f.opset_imports[""] for f in model.functions.values()} == {13, 18}
    want = ir.from_proto(onnx.parser.parse_model(FUNCTIONS.format(second="squash")))
    for target in (17, 20):
        converted = convert.convert(model, target)
        assert {f.opset_imports[""] for f in converted.functions.values()} == {target}
        assert_same(run(converted, {"x": floats(2, 3)}), run(want, {"x": floats(2, 3)}))


@pytest.mark.parametrize(
    ("version", "expected"), [(7, 4), (9, 4), (11, 6), (13, 7), (17, 8), (18, 8), (20, 9), (21, 10), (23, 11)]
)
def test_the_ir_version_is_the_smallest_that_fits(version: int, expected: int) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }", 18)
    assert convert.convert(model, version).ir_version == expected


def test_a_model_of_the_wanted_opset_only_gets_its_ir_version() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }", 18, ir_version=11)
    same = convert.convert(model, 18)
    assert (same.ir_version, model.ir_version) == (8, 11)
