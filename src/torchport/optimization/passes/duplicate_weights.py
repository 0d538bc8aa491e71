"""Keep equal weights once."""

from __future__ import annotations

import onnx_ir as ir

from torchport.editing.cleanup import deduplicate
from torchport.optimization.passes.graph_pass import GraphPass, Work


def _apply(model: ir.Model, work: Work) -> None:
    work.changes += deduplicate(model)


PASS = GraphPass(
    "duplicate weights",
    requires="two weights of the same dtype, shape and bytes",
    ensures="every weight is stored once",
    apply=_apply,
)
