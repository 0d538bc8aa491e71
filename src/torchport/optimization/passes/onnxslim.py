"""What onnxslim makes of the model, if that has fewer nodes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from torchport.optimization.passes.graph_pass import GraphPass, Work
from torchport.optimization.passes.simplifier import simplify


def _program(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim

    return onnxslim.slim(model)


def _apply(model: ir.Model, work: Work) -> None:
    simplify(model, work, _program)


PASS = GraphPass(
    "onnxslim",
    requires="fewer nodes after onnxslim, and weights of less than 1 GiB",
    ensures="the model has no more nodes than onnxslim leaves",
    apply=_apply,
)
