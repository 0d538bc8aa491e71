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

from torchport.optimization.passes.graph_pass import GraphPass, Work
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
    before = sum(1 for _ in model.graph)
    IdentityEliminationPass()(model)
    work.changes += before - sum(1 for _ in model.graph)


PASS = GraphPass(
    "redundant operators",
    requires="an operator that changes nothing (x + 0, x * 1, a cast to its own type, ...) or repeats its neighbor",
    ensures="none is left in the forms that onnxscript's rules know",
    apply=_apply,
)
