"""Report patterns that are left as they are: the engine joins them itself, or ONNX has no operator for them."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.dataflow import made_by
from torchport.optimization.passes.graph_pass import GraphPass, Work, is_operator
from torchport.optimization.result import ONNXRUNTIME, OPENVINO

_NORMS = ("LayerNormalization", "RMSNormalization")


def _apply(model: ir.Model, work: Work) -> None:
    for node in all_nodes(model):
        if is_operator(node, *_NORMS) and made_by(node.inputs[0], "Add") is not None:
            work.left("normalization of a sum", node, _REASONS[work.target])
        elif is_operator(node, "Mul") and _is_silu(node):
            work.left("SiLU", node, _REASONS[work.target])


def _is_silu(node: ir.Node) -> bool:
    """Check for x · sigmoid(x)."""
    for value, other in (node.inputs[:2], node.inputs[1::-1]):
        sigmoid = made_by(value, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is other:
            return True
    return False


_REASONS = {
    ONNXRUNTIME: "ONNX Runtime joins it when it opens the model",
    OPENVINO: "OpenVINO joins it when it compiles the model",
    "portable": "the model's opset has no operator for it",
}

PASS = GraphPass(
    "other patterns",
    requires="a change to make: it only reports what is left to the engine",
    ensures="nothing: the model stays as it is",
    apply=_apply,
)
