"""Reshape of an empty tensor: torch's translation writes the sizes as they are, and ONNX takes 0 for "as it was".

A size of 0 among constant sizes is meant, so the node is told so. Without -1 beside it: ONNX has no such form.
"""

from __future__ import annotations

import onnx_ir as ir


def mean_zero(model: ir.Model) -> None:
    """Sizes of 0 mean 0, in place."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
            continue
        sizes = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] is not None else None
        if sizes is None:
            continue
        numbers = sizes.numpy().tolist()
        if 0 in numbers and -1 not in numbers:
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
