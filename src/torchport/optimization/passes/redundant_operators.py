"""Take out operators that change nothing, and join neighbors of which one does the work of both."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass
from onnxscript.rewriter.rules.common import (
    add_0_rule,
    cast_constant_of_shape_rule,
    cast_constant_of_shape_without_value_rule,
    div_by_1_rule,
    dropout_inference_rule,
    dropout_zero_rule,
    expand_before_binary_op_rules,
    max_max_rule,
    max_min_rule,
    min_max_rule,
    min_min_rule,
    mul_by_1_rule,
    no_op_cast_rule,
    no_op_dynamic_scatter_nd_rule,
    no_op_expand_rule,
    no_op_static_scatter_nd_rule,
    remove_optional_bias_from_conv_rule,
    remove_optional_bias_from_conv_transpose_rule,
    remove_optional_bias_from_gemm_rule,
    sub_0_rule,
    successive_clip_relu_rule,
    successive_clip_rule,
    successive_relu_clip_rule,
    successive_relu_rule,
)

from torchport.irtools.node_reader import attribute, constant, input_at
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, is_operator, replace_value
from torchport.optimization.passes.rules import apply_rules

_RULES = [
    *mul_by_1_rule.commute(),
    *add_0_rule.commute(),
    sub_0_rule,
    div_by_1_rule,
    dropout_zero_rule,
    dropout_inference_rule,
    no_op_cast_rule,
    no_op_expand_rule,
    no_op_static_scatter_nd_rule,
    no_op_dynamic_scatter_nd_rule,
    cast_constant_of_shape_rule,
    cast_constant_of_shape_without_value_rule,
    *expand_before_binary_op_rules,
    min_min_rule,
    max_max_rule,
    min_max_rule,
    max_min_rule,
    successive_clip_rule,
    successive_relu_rule,
    successive_clip_relu_rule,
    successive_relu_clip_rule,
    remove_optional_bias_from_conv_rule,
    remove_optional_bias_from_conv_transpose_rule,
    remove_optional_bias_from_gemm_rule,
]


def _apply(model: ir.Model, work: Work) -> None:
    apply_rules(model, work, _RULES)
    for node in list(all_nodes(model)):
        if is_operator(node, "Pad", "LSTM", "GRU", "RNN"):
            work.looks_at(node)
            _drop_padding(node, work) if node.op_type == "Pad" else _drop_zero_states(node, work)
    before = sum(1 for _ in model.graph)
    IdentityEliminationPass()(model)
    work.changes += before - sum(1 for _ in model.graph)


def _drop_padding(node: ir.Node, work: Work) -> None:
    """Take out a padding of nothing."""
    pads, data = constant(input_at(node, 1)), node.inputs[0]
    if pads is None or data is None or pads.any() or not work.permits(node):
        return
    if replace_value(node, node.outputs[0], data):
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _drop_zero_states(node: ir.Node, work: Work) -> None:
    """Leave an initial state of zeros out: it is what a recurrent operator begins with."""
    for index in (5, 6):
        if _is_zeros(input_at(node, index)) and work.permits(node):
            node.replace_input_with(index, None)


def _is_zeros(value: ir.Value | None, depth: int = 8) -> bool:
    """Check that a tensor has zeros only, whatever its shape is."""
    array = constant(value)
    if array is not None:
        return array.dtype.kind in "fiu" and not array.any()
    node = None if value is None else value.producer()
    if is_operator(node, "ConstantOfShape"):
        given = attribute(node, "value")
        return given is None or not given.numpy().any()
    moved = is_operator(node, "Expand", "Slice", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Gather", "Tile")
    return moved and depth > 0 and node is not None and _is_zeros(node.inputs[0], depth - 1)


PASS = GraphPass(
    "redundant operators",
    requires="an operator that changes nothing (x + 0, x * 1, a cast to its own type, ...) or repeats its neighbor",
    ensures="none is left in the forms that onnxscript's rules know",
    apply=_apply,
)
