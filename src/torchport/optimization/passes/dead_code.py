"""Remove what no output needs: nodes, weights, functions and imports of operator domains."""

from __future__ import annotations

import onnx_ir as ir

from torchport.editing.cleanup import remove_unused
from torchport.optimization.passes.graph_pass import GraphPass, Work


def _apply(model: ir.Model, work: Work) -> None:
    work.changes += remove_unused(model)


PASS = GraphPass(
    "dead code",
    requires="nodes, weights or functions that no output needs",
    ensures="every node, weight and function is needed by an output",
    apply=_apply,
)
