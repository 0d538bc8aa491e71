"""Compute now what does not depend on the model's inputs, up to a limit of bytes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from torchport.editing.fold import fold
from torchport.optimization.passes.graph_pass import GraphPass, Work

_FIRST_IR_OF_FREE_INITIALIZERS = 4


def _apply(model: ir.Model, work: Work) -> None:
    work.changes += fold(model, limit_bytes=work.limit_bytes)
    if (model.ir_version or 0) >= _FIRST_IR_OF_FREE_INITIALIZERS:
        before = sum(1 for _ in model.graph)
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        work.changes += before - sum(1 for _ in model.graph)


PASS = GraphPass(
    "constant folding",
    requires="a node whose inputs are constants, or a shape of known sizes",
    ensures="no such node is left whose result is within the limit of bytes and on which engines agree",
    apply=_apply,
)
