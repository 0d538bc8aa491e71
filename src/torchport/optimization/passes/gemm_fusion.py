"""Join a matrix product and the bias added to it into one Gemm, with a transpose of a factor, if there is one.

onnxscript has a rule for it that does not look at the bias: one of more than two dimensions is no bias of a Gemm.
"""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools.node_reader import FLOATS, integers
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work, is_operator, only_use, replace


def _apply(model: ir.Model, work: Work) -> None:
    for node in list(all_nodes(model)):
        if is_operator(node, "Add") and len(node.inputs) == 2:
            work.looks_at(node)
            _join(node, work)


def _join(node: ir.Node, work: Work) -> None:
    for place in (0, 1):
        value, bias = node.inputs[place], node.inputs[1 - place]
        product = None if value is None else value.producer()
        if value is None or bias is None or not is_operator(product, "MatMul") or not only_use(value):
            continue
        a, b = product.inputs
        if product.graph is not node.graph or not (_is_matrix(a) and _is_matrix(b)) or not _is_bias(bias, b):
            continue
        if value.dtype not in FLOATS or not work.permits(node):
            continue
        _put_gemm(node, product, bias)
        return


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 2


def _is_bias(bias: ir.Value, b: ir.Value | None) -> bool:
    """Check that a bias is a number for each column: others may be larger than the product."""
    if bias.shape is None or len(bias.shape) != 1 or b is None or b.shape is None:
        return False
    return bias.shape[0] in (1, b.shape[1]) and isinstance(bias.shape[0], int)


def _put_gemm(node: ir.Node, product: ir.Node, bias: ir.Value) -> None:
    factors, attributes = [], []
    for value, name in zip(product.inputs, ("transA", "transB"), strict=True):
        before = None if value is None else value.producer()
        swaps = is_operator(before, "Transpose") and before is not None and integers(before, "perm") in (None, [1, 0])
        factors.append(before.inputs[0] if swaps and before is not None else value)
        attributes += [ir.AttrInt64(name, 1)] if swaps else []
    gemm = ir.Node("", "Gemm", [*factors, bias], attributes, name=product.name)
    replace(node, [gemm], [node.outputs[0]], [gemm.outputs[0]])
    if product.graph is not None and not product.outputs[0].uses():
        product.graph.remove(product, safe=True)


PASS = GraphPass(
    "matrix product and bias",
    requires="a MatMul of two matrices (rank 2) that one Add reads, with a bias of one number for each column",
    ensures="such a pair is one Gemm",
    apply=_apply,
)
