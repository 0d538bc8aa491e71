"""Join slices and concats that follow each other, and take out those that change nothing."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter.rules.common import collapse_slice2_rule, collapse_slice_rule, slice_split_rule

from torchport.irtools.node_reader import integer
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, is_operator, only_use, replace_value
from torchport.optimization.passes.rules import apply_rules

_RULES = [collapse_slice_rule, collapse_slice2_rule, slice_split_rule]


def _apply(model: ir.Model, work: Work) -> None:
    for node in list(all_nodes(model)):
        if is_operator(node, "Concat"):
            work.looks_at(node)
            _drop_single(node, work) or _flatten(node, work)
    apply_rules(model, work, _RULES)


def _drop_single(node: ir.Node, work: Work) -> bool:
    """Take out a concat of one tensor."""
    source = node.inputs[0]
    if len(node.inputs) != 1 or source is None or not work.permits(node):
        return False
    if not replace_value(node, node.outputs[0], source):
        return False
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True


def _flatten(node: ir.Node, work: Work) -> bool:
    """Take the inputs of a concat that this one alone reads, along the same axis."""
    for index, value in enumerate(node.inputs):
        inner = None if value is None else value.producer()
        if value is None or not is_operator(inner, "Concat") or not only_use(value):
            continue
        assert inner.graph is not None
        if inner.graph is not node.graph or _axis(inner) != _axis(node) or _axis(node) is None:
            continue
        if not work.permits(node):
            return False
        inputs = [*node.inputs[:index], *inner.inputs, *node.inputs[index + 1 :]]
        node.resize_inputs(len(inputs))
        for place, given in enumerate(inputs):
            node.replace_input_with(place, given)
        inner.graph.remove(inner, safe=True)
        return True
    return False


def _axis(node: ir.Node) -> int | None:
    axis = integer(node, "axis", 0)
    if axis >= 0:
        return axis
    rank = next((len(v.shape) for v in (*node.outputs, *node.inputs) if v is not None and v.shape is not None), None)
    return None if rank is None else axis + rank


PASS = GraphPass(
    "slices and concats",
    requires="a slice of a slice or of everything, slices that together are a split, a concat in a concat or of one",
    ensures="none is left in the forms that are known here and to onnxscript's rules",
    apply=_apply,
)
