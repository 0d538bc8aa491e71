"""Compute nodes whose inputs are known, with onnx's reference implementation, within limits of size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from torchport.irtools import node_reader
from torchport.tensors import Array

FEW = 1024  # elements of a tensor that may be a shape or an index, worth keeping


def run_node(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int, *, count: int) -> list[Array]:
    """Return the first `count` outputs of one of ONNX's own operators, by onnx's reference implementation.

    Raises:
        Exception: of any class, where the reference does not have the operator or cannot compute these inputs.
    """
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    alone.domain = ""
    alone.input[:] = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    alone.output[:] = [f"o{index}" for index in range(count)]
    feeds = {f"i{index}": array for index, array in enumerate(inputs) if array is not None}
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(alone, opsets={"": opset}).run(None, feeds)
    return [np.asarray(array) for array in found]


# Computes now what does not depend on the model's inputs: axes, sizes and pad widths put together step by step.
#
# onnxscript's folding does more than that (it turns a CastLike into a Cast without its `saturate`), and what is needed
# here is little; so it is done with onnx's reference implementation, for operators that put small numbers together.

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
    inputs = [None if value is None else node_reader.constant(value) for value in node.inputs]
    given = [array for array in inputs if array is not None and array.dtype != object and array.size <= _SMALL]
    return _computed(node, given, opset) if len(given) == len(node.inputs) else None


def _shape(node: ir.Node) -> Array | None:
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    part = list(value.shape)[slice(node_reader.integer(node, "start", 0), node_reader.attribute(node, "end"))]
    sizes = [size for size in part if isinstance(size, int)]
    return np.array(sizes, dtype=np.int64) if len(sizes) == len(part) else None


def _cast(node: ir.Node) -> Array | None:
    array, like = node_reader.constant(node.inputs[0]), node.inputs[1]
    if array is None or array.dtype == object or like is None or like.dtype not in node_reader.FLOATS:
        return None
    return array.astype(like.dtype.numpy())


def _computed(node: ir.Node, inputs: list[Array], opset: int) -> Array | None:
    if node.op_type == "ConstantOfShape" and inputs[0].prod() > _SMALL:
        return None
    (result,) = run_node(ir.serde.serialize_node(node), inputs, opset, count=1)
    return result if result.size <= _SMALL else None


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
    try:
        return run_node(ir.serde.serialize_node(node), inputs, opset, count=len(node.outputs))
    except Exception:  # noqa: BLE001 - a node that cannot be computed here stays, and the engine has its say
        return None
