"""Models for pages: with graphs in graphs, and with names that try to be more than names."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

SCRIPT = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror=alert(1)>"
TURNED = "abc\u202egnp.exe\u200b\u0007"


def nested() -> ir.Model:
    """Return a model with branches, a loop, and a function that is called twice."""
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, [2]), value("y", TensorProto.FLOAT, [2])
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], [f"{name}_out"], name=f"inside_{name}")],
            name,
            [],
            [value(f"{name}_out", TensorProto.FLOAT, [2])],
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "x"], ["state_out"], name="inside_loop"),
            helper.make_node("Identity", ["go"], ["go_out"], name="keep"),
        ],
        "body",
        [value("n", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state", TensorProto.FLOAT, [2])],
        [value("go_out", TensorProto.BOOL, []), value("state_out", TensorProto.FLOAT, [2])],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["a"], name="branch", **branches),
        helper.make_node("Loop", ["three", "yes", "a"], ["b"], name="loop", body=body),
        helper.make_node("Twice", ["b"], ["c"], name="call1", domain="mine"),
        helper.make_node("Twice", ["c"], ["y"], name="call2", domain="mine"),
    ]
    function = helper.make_function(
        "mine",
        "Twice",
        ["v"],
        ["w"],
        [helper.make_node("Add", ["v", "v"], ["w"], name="inside_function")],
        [helper.make_opsetid("", 20)],
    )
    weights = [numpy_helper.from_array(np.array(True), "yes"), numpy_helper.from_array(np.array(3), "three")]
    graph = helper.make_graph(nodes, "nested", [x], [y], weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10))


def hostile() -> ir.Model:
    """Return a model whose every text wants to be HTML, to hide, or to fill the page."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Relu", [IMAGE], ["a"], name=SCRIPT, doc_string=SCRIPT),
        helper.make_node("LeakyRelu", ["a"], ["b"], name=f"script {TURNED}", alpha=float("nan")),
        helper.make_node("Odd\"'`${x}", ["b"], ["c" * 1_000_000], name="n" * 1_000_000, domain=SCRIPT, text=SCRIPT),
        helper.make_node("Neg", ["c" * 1_000_000], [f"y{SCRIPT}"], name="javascript:alert(1)"),
    ]
    for node, module in zip(nodes, (SCRIPT, "__proto__", "constructor", "a." * 500), strict=True):
        node.metadata_props.add(key="torchport.module", value=module)
        node.metadata_props.add(key="torchport.source", value=f"{IMAGE}.py:1")
    graph = helper.make_graph(
        nodes,
        SCRIPT,
        [value(IMAGE, TensorProto.FLOAT, [IMAGE, 2])],
        [value(f"y{SCRIPT}", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(SCRIPT, 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, producer_name=IMAGE, ir_version=10)
    for key, text in {IMAGE: SCRIPT, "torchport.proof": '{"passed": "<b>"}', "torchport.route": SCRIPT}.items():
        model.metadata_props.add(key=key, value=text)
    return ir.from_proto(model)
