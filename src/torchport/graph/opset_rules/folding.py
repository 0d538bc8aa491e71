"""Computes now what does not depend on the model's inputs: axes, sizes and pad widths put together step by step.

onnxscript's folding does more than that (it turns a CastLike into a Cast without its `saturate`), and what is asked
for here is little; so it is done with onnx's reference implementation, for operators that put small numbers together.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from torchport.graph.opset_rules import reading
from torchport.tensors import Array

_SMALL = 4096  # elements worth computing now
# fmt: off
_COMPUTED = frozenset((
    "Add", "And", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Gather", "Greater",
    "Identity", "Less", "Max", "Min", "Mul", "Neg", "Not", "Or", "Range", "ReduceProd", "ReduceSum",
    "Reshape", "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
))
# fmt: on


def known(node: ir.Node, opset: int) -> Array | None:
    """What the node gives, where that is certain before the model runs."""
    if len(node.outputs) != 1 or not node.inputs or node.domain != "":
        return None
    if node.op_type == "Shape":
        return _shape(node)
    if node.op_type == "CastLike":
        return _cast(node)
    if node.op_type not in _COMPUTED or any(attr.is_ref() for attr in node.attributes.values()):
        return None
    inputs = [None if value is None else reading.constant(value) for value in node.inputs]
    given = [array for array in inputs if array is not None and array.dtype != object and array.size <= _SMALL]
    return _computed(node, given, opset) if len(given) == len(node.inputs) else None


def _shape(node: ir.Node) -> Array | None:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    part = list(value.shape)[slice(reading.integer(node, "start", 0), reading.attribute(node, "end"))]
    sizes = [size for size in part if isinstance(size, int)]
    return np.array(sizes, dtype=np.int64) if len(sizes) == len(part) else None


def _cast(node: ir.Node) -> Array | None:
    array, like = reading.constant(node.inputs[0]), node.inputs[1]
    if array is None or array.dtype == object or like is None or like.dtype not in reading.FLOATS:
        return None
    return array.astype(like.dtype.numpy())


def _computed(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    if node.op_type == "ConstantOfShape" and inputs[0].prod() > _SMALL:
        return None
    proto = onnx.NodeProto()
    proto.CopyFrom(ir.serde.serialize_node(node))
    proto.input[:] = [f"i{index}" for index in range(len(inputs))]
    proto.output[:] = ["o"]
    run = ReferenceEvaluator(proto, opsets={"": opset}).run
    result = np.asarray(run(None, dict(zip(proto.input, inputs, strict=True)))[0])  # type: ignore[index]
    return result if result.size <= _SMALL else None
