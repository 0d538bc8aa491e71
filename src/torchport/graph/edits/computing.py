"""What a node gives for known inputs, by onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from torchport.tensors import Array

# fmt: off
GROWING = frozenset(("ConstantOfShape", "Expand", "Tile", "Range", "Pad", "OneHot"))
COMPUTED = GROWING | frozenset((
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Cos", "CumSum", "Div", "Equal", "Erf", "Exp",
    "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gemm", "Greater", "GreaterOrEqual", "Identity",
    "IsNaN", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Round",
    "Sigmoid", "Sign", "Sin", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Trilu",
    "Unsqueeze", "Where", "Xor",
))
MOVING = frozenset(("Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"))
PLAIN = frozenset((
    "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
))
# fmt: on


def are_of(node: ir.Node, arrays: Sequence[Array]) -> bool:
    """Whether what was computed has the types and shapes that the model says."""
    if len(arrays) != len(node.outputs):
        return False
    for value, array in zip(node.outputs, arrays, strict=True):
        if array.dtype.name not in PLAIN or (value.dtype is not None and value.dtype.numpy() != array.dtype):
            return False
        dims = () if value.shape is None else zip(value.shape, array.shape, strict=False)
        rank = value.shape is None or len(value.shape) == array.ndim
        if not rank or any(isinstance(a, int) and a != b for a, b in dims):
            return False
    return True


def _is_certain(node: ir.Node, inputs: Sequence[Array | None]) -> bool:
    """Whether all agree what comes out.

    ONNX leaves open what an integer divided by zero is, and a float that no integer holds. Of a slice that goes
    backwards to the largest integer, onnx's reference gives all, onnxruntime nothing.
    """
    first, last = inputs[0], inputs[-1]
    if node.op_type == "Slice" and len(inputs) == 5 and last is not None:
        return bool((last > 0).all())
    if node.op_type in ("Div", "Mod") and last is not None and last.dtype.kind in "iu":
        return bool((last != 0).all())
    if node.op_type == "Pow" and first is not None and last is not None and first.dtype.kind in "iu":
        return bool((last >= 0).all())
    if node.op_type not in ("Cast", "CastLike") or first is None or first.dtype.kind != "f":
        return True
    wanted = node.outputs[0].dtype
    if wanted is None or not wanted.is_integer():
        return wanted is not None
    low, high = float(wanted.min), float(wanted.max)
    return bool((np.isfinite(first) & (first >= low) & (first < high)).all())


def computed(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> list[Array] | None:
    """What a node gives; None where engines may differ, or the reference does not have it."""
    if not _is_certain(node, inputs):
        return None
    proto = onnx.NodeProto()
    proto.CopyFrom(ir.serde.serialize_node(node))
    proto.domain = ""
    proto.input[:] = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    proto.output[:] = [f"o{index}" for index in range(len(node.outputs))]
    feeds = {f"i{index}": array for index, array in enumerate(inputs) if array is not None}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(proto, opsets={"": opset}).run(None, feeds)
    except Exception:  # noqa: BLE001 - a node that cannot be computed here stays, and the engine has its say
        return None
    return [np.asarray(array) for array in found]
