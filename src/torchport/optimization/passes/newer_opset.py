"""Convert a model to an opset that has operators for the patterns in it."""

from __future__ import annotations

import onnx_ir as ir

from torchport.editing.transaction import take_over
from torchport.opset.convert import convert
from torchport.optimization.passes import activations, attention, normalizations, rotary
from torchport.optimization.passes.graph_pass import GraphPass, Work
from torchport.optimization.result import ONNXRUNTIME, Target


def _apply(model: ir.Model, work: Work) -> None:
    needed, node = _needed(model)
    if node is None or model.opset_imports.get("", 0) >= needed or not work.permits(node):
        return
    take_over(model, convert(model, needed))


def _needed(model: ir.Model) -> tuple[int, ir.Node | None]:
    """Return the smallest opset that has operators for all that is found, and a node of what needs it."""
    wanted = [(activations.OPSET, g.last) for g in activations.find(model)]
    wanted += [(normalizations.OPSETS[n.operator], n.last) for n in normalizations.find(model)]
    wanted += [(attention.OPSET, a.last) for a in attention.find(model) if not a.reason]
    wanted += [(rotary.OPSET, r.last) for r in rotary.find(model) if not r.reason]
    return max(wanted, key=lambda pair: pair[0], default=(0, None))


_TARGETS: tuple[Target, ...] = (ONNXRUNTIME,)  # the others keep the opset that they were given

PASS = GraphPass(
    "newer opset",
    requires="attention, a rotary embedding, a normalization or an activation written out, whose operator is newer",
    ensures="the model's opset has the operator",
    apply=_apply,
    targets=_TARGETS,
    claims_speed=True,
)
