"""Compute once what several nodes compute from the same inputs."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import GraphPass, Work

_RANDOM = ("Bernoulli", "Dropout")  # onnx-ir knows of the other operators that they are random


def _apply(model: ir.Model, work: Work) -> None:
    if any(node.op_type in _RANDOM for node in all_nodes(model)):
        return
    before = sum(1 for _ in model.graph)
    CommonSubexpressionEliminationPass()(model)
    work.changes += before - sum(1 for _ in model.graph)


PASS = GraphPass(
    "common subexpressions",
    requires="two nodes of one operator, with the same inputs and attributes, that draw no random numbers",
    ensures="no two such nodes are left in the main graph",
    apply=_apply,
)
