"""A float64 number before or after a MatMul, which ONNX Runtime (1.31) makes the product's float32 `alpha`.

The scale of an attention is such a number: 1/sqrt(2) comes out 2e-8 off. Max of one input changes nothing, and ONNX
Runtime does not look past it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_BETWEEN = ("Transpose", "MatMul")  # a transpose becomes part of the product first


def avoid(model: ir.Model) -> None:
    """Put a Max between each product and a number that float32 cannot hold."""
    for node in list(model.graph.all_nodes()):
        if node.op_type not in ("Mul", "Div") or node.domain or node.outputs[0].dtype != ir.DataType.DOUBLE:
            continue
        for place, value in enumerate(node.inputs):
            other = node.inputs[1 - place]
            if value is None or other is None or not _loses(value):
                continue
            out = node.outputs[0]
            if any(use.node.op_type in _BETWEEN for use in out.uses()):
                _hold(out, node)
            made = other.producer()
            if made is not None and made.op_type in _BETWEEN:
                _hold(other, made)


def _loses(value: ir.Value) -> bool:
    """Whether it is one number that float32 cannot hold."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return False
    number = tensor.numpy().reshape(-1)[0]
    return bool(np.float64(np.float32(number)) != number)


def _hold(value: ir.Value, after: ir.Node) -> None:
    held = ir.node("Max", [value])
    held.outputs[0].type, held.outputs[0].shape = value.type, value.shape
    held.metadata_props.update(after.metadata_props)
    assert after.graph is not None
    after.graph.insert_after(after, held)
    for use in [use for use in value.uses() if use.node is not held]:
        use.node.replace_input_with(use.idx, held.outputs[0])
