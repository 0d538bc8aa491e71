"""A dimension must not be lost on the way, and the rows of a batch must not be mixed.

A dimension of size 1 leaves no trace: a reshape may have folded it with the axis before it or after it. The wrong
reading gives a model that runs, and attends from one row of the batch to another. It shows where an operator sums over
an axis that the dimension is folded into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from torchport.graph.edits.freeing.facts import Fact

if TYPE_CHECKING:
    from torchport.graph.edits.freeing.walk import Walk

_ALONG = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "TopK", "CumSum", "LpNormalization")
_LOSES = (  # operators that may give, of something that holds the dimension, something that does not
    *("Shape", "Size", "ArgMax", "ArgMin", "Gather", "Slice", "MatMul", "Gemm", "Einsum", "Resize", "Compress"),
    *("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "TopK", "If", "Loop", "Scan", "EyeLike", "Det", "Expand"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "NonMaxSuppression", "NonZero", "Unique", "Pad"),
)


def check_kept(walk: Walk, node: ir.Node, given: list[Fact | None]) -> None:
    """Raises `InputError` where the dimension goes into a node and should come out, and does not."""
    held = any(f is not None and f.held for f in given)
    kept = any(walk.facts[v].changed or None in (walk.facts[v].now or (None,)) for v in node.outputs)
    if held and not kept and node.op_type not in _LOSES and not node.op_type.startswith("Reduce"):
        raise walk.refusal(node, "the dimension goes in and does not come out")


def check_not_mixed(walk: Walk, node: ir.Node, given: list[Fact | None]) -> None:
    """Raises `InputError` where a node sums over an axis into which a dimension of size 1 was folded."""
    if walk.probe.was != 1 or node.domain != "":
        return
    folded = [set() if f is None or f.was is None else {a for a in f.held if f.was[a] != 1} for f in given]
    if any(folded[n] & summed for n, summed in _summed(walk, node, given).items()):
        raise walk.refusal(node, "it sums over an axis that the dimension is folded into with others")
    for value in node.outputs:
        fact = walk.facts[value]
        if len(fact.held) > 1 and any((fact.was or ())[a] != 1 for a in fact.held):
            raise walk.refusal(node, "it puts every row of the dimension against every other")


def _summed(walk: Walk, node: ir.Node, given: list[Fact | None]) -> dict[int, set[int]]:
    """For each input the axes over which the node sums."""
    ranks = [0 if f is None or f.was is None else len(f.was) for f in given]
    if node.op_type in ("MatMul", "MatMulInteger"):
        return {0: {ranks[0] - 1}, 1: {max(ranks[1] - 2, 0)}}
    if node.op_type == "Gemm":
        turned = [bool(walk.attribute(node, name, 0)) for name in ("transA", "transB")]
        return {0: {0 if turned[0] else 1}, 1: {1 if turned[1] else 0}}
    if node.op_type == "LayerNormalization":
        return {0: set(range(walk.attribute(node, "axis", -1) % ranks[0], ranks[0]))}
    if node.op_type == "Einsum":
        return _summed_letters(walk, node)
    if node.op_type.startswith("Reduce"):
        return {0: _reduced(walk, node, given, ranks[0])}
    if node.op_type in _ALONG and ranks[0]:
        default = 1 if node.op_type == "Softmax" and walk.opset < 13 else -1
        return {0: {walk.attribute(node, "axis", default) % ranks[0]}}
    return {}


def _reduced(walk: Walk, node: ir.Node, given: list[Fact | None], rank: int) -> set[int]:
    data = given[1].old_data if len(given) > 1 and given[1] is not None else None
    axes = data.reshape(-1).tolist() if data is not None else walk.attribute(node, "axes", None)
    return {axis % rank for axis in axes} if axes is not None and rank else set()


def _summed_letters(walk: Walk, node: ir.Node) -> dict[int, set[int]]:
    text = walk.attribute(node, "equation", "")
    text = (text.decode() if isinstance(text, bytes) else text).replace(" ", "")
    terms, arrow, result = text.partition("->")
    if not arrow or "." in text:
        return {}
    return {n: {a for a, x in enumerate(term) if x not in result} for n, term in enumerate(terms.split(","))}
