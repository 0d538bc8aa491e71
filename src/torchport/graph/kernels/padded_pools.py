"""A Pad with zeros before a MaxPool, which ONNX Runtime (1.31) makes one: the pool then pads with minus infinity.

Where all numbers of a window are negative, 0 is the right answer and the fused pool gives another. Max of one input
changes nothing, and ONNX Runtime does not look past it.
"""

from __future__ import annotations

import onnx_ir as ir


def avoid(model: ir.Model) -> None:
    """Put a Max between each Pad and the MaxPool that follows it."""
    for node in list(model.graph.all_nodes()):
        padded = node.inputs[0] if node.op_type == "MaxPool" else None
        pad = padded.producer() if padded is not None else None
        if padded is not None and pad is not None and pad.op_type == "Pad" and len(node.outputs) == 1:
            kept = ir.node("Max", [padded])
            kept.outputs[0].type, kept.outputs[0].shape = padded.type, padded.shape
            kept.metadata_props.update(node.metadata_props)
            assert node.graph is not None
            node.graph.insert_before(node, kept)
            node.replace_input_with(0, kept.outputs[0])
