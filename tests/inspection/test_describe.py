"""What `tp.graph.describe` says of a model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from made_models import good, node, proto_of, square, written
from onnx import helper
from small_net import SmallNet

import torchport as tp
from torchport.errors import FileError, OptionError


@pytest.fixture(scope="module")
def described(onnx_file: Path) -> Any:
    return tp.graph.describe(onnx_file, at={"batch": 2, "height": 16, "width": 16})


def test_parameters_are_pytorchs(described: Any, small_net: SmallNet) -> None:
    """The norm is folded into the convolution when exported: its two parameters go."""
    norm = sum(p.numel() for p in small_net.norm.parameters())
    assert described.parameters == sum(p.numel() for p in small_net.parameters()) - norm


def test_the_cost_is_that_of_the_layers(described: Any) -> None:
    pixels, linear = 3 * 8 * 9, 8 * 5
    assert described.cost_at.multiply_adds == 2 * (16 * 16 * pixels + linear)
    assert described.cost.multiply_adds.at(batch=2, height=16, width=16) == described.cost_at.multiply_adds
    assert described.cost.by_operator.keys() == {"Conv", "Gemm"}


def test_header_and_interface(described: Any) -> None:
    assert described.opsets["ai.onnx"] >= 13
    assert described.producer.startswith("torchport ")
    assert described.proof["passed"]
    assert [str(i) for i in described.inputs] == ["x: float32[batch,3,height,width]"]
    assert {o.name for o in described.outputs} == {"logits", "pooled"}
    assert described.symbols == ("batch", "height", "width")


def test_weights_are_largest_first_and_add_up(described: Any) -> None:
    sizes = [w.bytes for w in described.weights]
    assert sizes == sorted(sizes, reverse=True)
    assert described.weights[0].shape == (8, 3, 3, 3)
    assert described.weight_bytes == sum(sizes) == sum(t.bytes for t in described.dtypes)


def test_modules_are_a_tree_that_adds_up(described: Any) -> None:
    by_path = {m.path: m for m in described.modules}
    assert by_path[""].nodes == described.nodes
    assert by_path[""].multiply_adds == described.cost.multiply_adds
    assert by_path["fc"].parameters == 8 * 5 + 5


def test_the_text_fits_a_terminal(described: Any) -> None:
    text = str(described)
    assert max(map(len, text.splitlines())) <= 80
    for part in ("cases agreed with PyTorch", "in   x", "mult-adds", "at batch=2, height=16, width=16", "modules"):
        assert part in text


def test_json_has_exact_numbers(described: Any) -> None:
    plain = json.loads(json.dumps(described.to_json(), allow_nan=False))
    assert plain["cost"]["multiply_adds"]["terms"] == {"batch*height*width": 216, "batch": 40}
    assert plain["cost_at"]["multiply_adds"] == described.cost_at.multiply_adds
    assert plain["weight_bytes"] == described.weight_bytes


def test_a_dimension_that_is_not_there_is_an_error_with_the_close_one(onnx_file: Path) -> None:
    with pytest.raises(OptionError, match="no dynamic dimension 'bach'") as caught:
        tp.graph.describe(onnx_file, at={"bach": 2})
    assert caught.value.next_step == "did you mean 'batch'?"
    with pytest.raises(OptionError, match="is no size"):
        tp.graph.describe(onnx_file, at={"batch": -1})


def test_own_operators_functions_and_bodies_are_listed() -> None:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"])], "then", [], [helper.make_empty_tensor_value_info("t")]
    )
    other = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["e"])], "else", [], [helper.make_empty_tensor_value_info("e")]
    )
    steps = [
        helper.make_node("If", ["c"], ["a"], name="choice", then_branch=inner, else_branch=other),
        helper.make_node("Twice", ["a"], ["b"], domain="mine"),
        helper.make_node("FooOp", ["b"], ["y"], domain="mine"),
    ]
    proto = proto_of(*steps, weights={"c": np.array(True)})
    function = helper.make_function(
        "mine", "Twice", ["p"], ["q"], [helper.make_node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 20)]
    )
    proto.functions.append(function)
    named = [{"name": "mine::FooOp", "library": "libfoo.so", "sha256": "ab"}]
    helper.set_model_props(proto, {"torchport.operators": json.dumps(named), "who": "me"})
    found = tp.graph.describe(ir.from_proto(proto))
    assert found.metadata == {"who": "me"}
    assert [(f.name, f.nodes, f.calls) for f in found.functions] == [("mine::Twice", 1, 1)]
    assert [(s.node, s.attribute, s.nodes, s.captured) for s in found.subgraphs] == [
        ("choice", "else_branch", 1, ("x",)),
        ("choice", "then_branch", 1, ("x",)),
    ]
    assert [(o.name, o.library, o.count) for o in found.own_operators] == [("mine::FooOp", "libfoo.so", 1)]
    assert found.operators["mine::FooOp"] == 1
    assert "kernel in libfoo.so" in str(found)


def test_a_constant_node_may_hold_weights() -> None:
    held = helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(square(), "w"))
    found = tp.graph.describe(ir.from_proto(proto_of(held, node("MatMul", "x", "w"))))
    assert found.parameters == 32 * 32
    assert found.cost.multiply_adds == 32**3


def test_weights_in_a_data_file_are_not_read(tmp_path: Path) -> None:
    path = tp.graph.save(ir.from_proto(good()), tmp_path / "m.onnx", external=True)
    model = tp.graph.load(path)
    described = tp.graph.describe(model)
    assert described.weights[0].file.endswith(".data")
    assert all(v.const_value.raw is None for v in model.graph.initializers.values() if v.const_value.nbytes > 1024)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nonsense", good().SerializeToString()[:900]])
def test_a_broken_file_is_a_typed_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        tp.graph.describe(written(content, tmp_path))


def test_metadata_that_is_no_json_is_shown_as_text() -> None:
    proto = good()
    helper.set_model_props(proto, {"torchport.proof": "{broken", "torchport.operators": "[1, 2"})
    found = tp.graph.describe(ir.from_proto(proto))
    assert found.proof is None
    assert "none is saved" in str(found)


def large(count: int) -> onnx.ModelProto:
    steps, before = [], "x"
    for n in range(count // 4):
        steps += [node("MatMul", before, "w", to=f"m{n}"), node("Add", f"m{n}", "w", to=f"a{n}")]
        steps += [node("Relu", f"a{n}", to=f"r{n}"), node("Add", f"r{n}", before, to=f"o{n}")]
        before = f"o{n}"
    return proto_of(*steps, node("Identity", before), weights={"w": square()})


def test_ten_thousand_nodes_take_seconds() -> None:
    model = ir.from_proto(large(10_000))
    start = time.process_time()
    found = tp.graph.describe(model)
    assert time.process_time() - start < 8  # 1.5 s on the machine this was written on
    assert found.nodes == 10_001
    assert found.cost.multiply_adds == 2500 * 32**3


def test_describing_imports_no_torch(onnx_file: Path) -> None:
    code = f"import sys, torchport as tp; str(tp.graph.describe({str(onnx_file)!r})); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_function_is_not_hidden_by_a_module_of_its_name(onnx_file: Path) -> None:

    assert tp.graph.describe(onnx_file).nodes > 0


def test_axes_that_share_a_placeholder_are_counted_apart_and_may_be_given_together() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,2,h] x, float[4,4] w)'
        " => (float[n,2,k] y) { y = MatMul(x, w) }"
    )
    model.graph.inputs[0].shape = model.graph.outputs[0].shape = ir.Shape(["?", "?", 4])
    found = tp.graph.describe(model, at={"?": 3})
    assert found.symbols == ("x:0", "x:1")
    assert found.at == {"x:0": 3, "x:1": 3}
    assert found.cost_at is not None
    assert found.cost_at.multiply_adds == 3 * 3 * 4 * 4
    apart = tp.graph.describe(model, at={"x:0": 3, "x:1": 5}).cost_at
    assert apart is not None
    assert apart.multiply_adds == 3 * 5 * 4 * 4
