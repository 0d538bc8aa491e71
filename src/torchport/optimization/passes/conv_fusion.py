"""Fold what follows a convolution into its weights: a batch normalization, or a number to add or multiply by channel.

γ · (W∗x + b − μ) / σ + β   =   (W · γ/σ) ∗ x + (b − μ) · γ/σ + β
(W∗x + b) · s + t           =   (W · s) ∗ x + b · s + t
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.rules.common import (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
    fuse_pad_into_conv_rule,
    normalize_pad_format_conv_rule,
)

from torchport.irtools.node_reader import constant, input_at
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import (
    GraphPass,
    Work,
    initializer,
    is_operator,
    only_use,
    replace_value,
)
from torchport.optimization.passes.rules import apply_rules
from torchport.tensors import Array

_RULES = [
    normalize_pad_format_conv_rule,
    fuse_pad_into_conv_rule,
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
]


def _apply(model: ir.Model, work: Work) -> None:
    apply_rules(model, work, _RULES)
    for node in list(all_nodes(model)):
        if is_operator(node, "Add", "Sub", "Mul", "Div") and len(node.inputs) == 2:
            work.looks_at(node)
            _fold(node, work)


def _fold(node: ir.Node, work: Work) -> None:
    """Fold an operator with a constant for each channel into the convolution before it."""
    for place in (0, 1):
        value, other = node.inputs[place], node.inputs[1 - place]
        conv = None if value is None else value.producer()
        if value is None or not is_operator(conv, "Conv") or not only_use(value) or _reversed(node, place):
            continue
        weights, bias = _own(input_at(conv, 1)), _own(input_at(conv, 2))
        unknown_bias = input_at(conv, 2) is not None and bias is None
        if conv.graph is not node.graph or weights is None or unknown_bias:
            continue
        numbers = _by_channel(constant(other), weights)
        if numbers is None or weights.dtype.kind != "f" or not work.permits(node):
            continue
        _rewrite(conv, node, weights, bias, numbers.astype(weights.dtype))
        return


def _reversed(node: ir.Node, place: int) -> bool:
    """Check for 2 - conv and 2 / conv, which are no scale of it (2 - conv is, and is rare)."""
    return node.op_type in ("Sub", "Div") and place == 1


def _own(value: ir.Value | None) -> Array | None:
    """Return the numbers of a weight that nothing else reads."""
    return constant(value) if value is not None and len(value.uses()) == 1 else None


def _by_channel(array: Array | None, weights: Array) -> Array | None:
    """Return a number for each output channel; None if a constant has others."""
    if array is None:
        return None
    channels, rank = weights.shape[0], weights.ndim
    if array.size == 1 and array.ndim <= rank:
        return np.broadcast_to(array.reshape(-1), (channels,))
    aligned = (1,) * (rank - array.ndim) + array.shape
    if len(aligned) != rank or aligned != (1, channels, *(1,) * (rank - 2)):
        return None
    return array.reshape(-1)


def _rewrite(conv: ir.Node, node: ir.Node, weights: Array, bias: Array | None, numbers: Array) -> None:
    graph = conv.graph
    assert isinstance(graph, ir.Graph)
    old = np.zeros(weights.shape[0], weights.dtype) if bias is None else bias
    base = str(conv.outputs[0].name)
    if node.op_type in ("Mul", "Div"):
        scale = numbers if node.op_type == "Mul" else 1 / numbers
        scaled = weights * scale.reshape(-1, *(1,) * (weights.ndim - 1))
        conv.replace_input_with(1, initializer(graph, scaled.astype(weights.dtype), f"{base}_weight"))
        new = old * scale
    else:
        new = old + numbers if node.op_type == "Add" else old - numbers
    if bias is not None or node.op_type in ("Add", "Sub"):
        conv.resize_inputs(3)
        conv.replace_input_with(2, initializer(graph, new.astype(weights.dtype), f"{base}_bias"))
    replace_value(node, node.outputs[0], conv.outputs[0])
    graph.remove(node, safe=True)


PASS = GraphPass(
    "convolution with what follows",
    requires="a convolution with constant weights that one batch normalization, or one Add, Sub, Mul or Div with a "
    "constant for each channel reads; or a constant padding with zeros before it",
    ensures="none of them is left behind such a convolution",
    apply=_apply,
)
