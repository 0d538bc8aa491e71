"""Join reshapes, squeezes, unsqueezes and flattens that follow each other, and take out those that change nothing."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter.rules.common import reshape_reshape_rule, squeeze_reshape_1d_rule, unsqueeze_unsqueeze_rule

from torchport.irtools.node_reader import constant, input_at, integer, same_shape, static_dims
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, is_operator, only_use, replace_value
from torchport.optimization.passes.rules import apply_rules

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_RULES = [reshape_reshape_rule, squeeze_reshape_1d_rule, unsqueeze_unsqueeze_rule]


def _apply(model: ir.Model, work: Work) -> None:
    for node in list(all_nodes(model)):
        if is_operator(node, *_VIEWS) and node.inputs and node.inputs[0] is not None:
            work.looks_at(node)
            _skip_view(node, work) or _drop_no_op(node, work)
    apply_rules(model, work, _RULES)


def _skip_view(node: ir.Node, work: Work) -> bool:
    """Let a reshape to sizes that do not depend on its input's shape read what the view before it reads."""
    source = node.inputs[0]
    before = None if source is None else source.producer()
    if source is None or not is_operator(before, *_VIEWS) or not only_use(source) or not _states_all_sizes(node):
        return False
    if before.graph is not node.graph or before.inputs[0] is None or not work.permits(node):
        return False
    node.replace_input_with(0, before.inputs[0])
    assert before.graph is not None
    before.graph.remove(before, safe=True)
    return True


def _states_all_sizes(node: ir.Node) -> bool:
    """Check that a reshape gives the same whatever shape its input has: no size is taken over from there."""
    if not is_operator(node, "Reshape"):
        return False
    sizes = constant(input_at(node, 1))
    return sizes is not None and (bool((sizes != 0).all()) or integer(node, "allowzero", 0) == 1)


def _drop_no_op(node: ir.Node, work: Work) -> bool:
    """Take out a view whose output has the shape of its input, dynamic dimensions included."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    if not (same_shape(source, out) and _at_most_one_named(source)) or not work.permits(node):
        return False
    if not replace_value(node, out, source):
        return False
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True


def _at_most_one_named(value: ir.Value) -> bool:
    """Check that the sizes of a shape follow from the number of elements: then equal names cannot mislead."""
    return static_dims(value) is not None or sum(not isinstance(d, int) for d in value.shape or ()) <= 1


PASS = GraphPass(
    "redundant reshapes",
    requires="a view (Reshape, Squeeze, Unsqueeze, Flatten) after another one, or one that keeps the shape",
    ensures="a reshape to known sizes reads no other view, and no view gives the shape it is given",
    apply=_apply,
)
