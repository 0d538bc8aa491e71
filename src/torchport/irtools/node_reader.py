"""What rules read off a node: ranks, dtypes, attributes, and values known before the model runs.

Each reader answers or raises `Refusal` with the reason, so that a rule is written for the case it understands and
every other case becomes a blocker by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.tensors import Array

FLOATS = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
SMALL_INTS = (
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
)


class Refusal(Exception):  # noqa: N818  (an answer, not a fault: the converter turns it into a blocker)
    """The rule cannot keep the node's meaning; its text is the reason shown to the user."""


def rank(value: ir.Value | None) -> int:
    """The number of dimensions of `value`."""
    if value is None or value.shape is None:
        raise Refusal(f"the rank of {_named(value)} is not known")
    return len(value.shape)


def static_dims(value: ir.Value | None) -> list[int] | None:
    """All dimensions of `value` when every one is a number, else None."""
    if value is None or value.shape is None:
        return None
    dims = [dim for dim in value.shape if isinstance(dim, int)]
    return dims if len(dims) == len(value.shape) else None


def static_dim(value: ir.Value | None, axis: int) -> int | None:
    """The size of one dimension when it is a number, else None."""
    dim = value.shape[axis] if value is not None and value.shape is not None else None
    return dim if isinstance(dim, int) else None


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether both shapes are known and agree, dimension names included."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    pairs = zip(a.shape, b.shape, strict=True)
    return all(x == y and (isinstance(x, int) or x.value is not None) for x, y in pairs)


def dtype(value: ir.Value | None) -> ir.DataType:
    """The element type of `value`."""
    if value is None or value.dtype is None:
        raise Refusal(f"the dtype of {_named(value)} is not known")
    return value.dtype


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """The input at `index`, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def required(node: ir.Node, index: int) -> ir.Value:
    """The input at `index`, which the operator cannot do without."""
    value = input_at(node, index)
    if value is None:
        raise Refusal(f"input {index} is missing")
    return value


def is_used(node: ir.Node, index: int) -> bool:
    """Whether anything reads the output at `index`."""
    if index >= len(node.outputs):
        return False
    output = node.outputs[index]
    return bool(output.uses()) or output.is_graph_output()


def attribute(node: ir.Node, name: str) -> Any:
    """The value of an attribute, None when it is not set."""
    attr = node.attributes.get(name)
    if attr is None:
        return None
    if attr.is_ref():
        raise Refusal(f"attribute '{name}' is set by the caller of the function")
    return attr.value


def integer(node: ir.Node, name: str, default: int) -> int:
    value = attribute(node, name)
    return default if value is None else int(value)


def real(node: ir.Node, name: str, default: float) -> float:
    value = attribute(node, name)
    return default if value is None else float(value)


def text(node: ir.Node, name: str, default: str) -> str:
    value = attribute(node, name)
    return default if value is None else str(value)


def integers(node: ir.Node, name: str) -> list[int] | None:
    value = attribute(node, name)
    return None if value is None else [int(v) for v in value]


def attribute_or(node: ir.Node, name: str, default: Any) -> Any:
    """Return an attribute's value, the default also where the caller of a function sets it: for mere estimates."""
    found = node.attributes.get(name)
    return default if found is None or found.is_ref() else found.value


def is_constant_node(node: ir.Node | None) -> bool:
    """Check that a node is ONNX's own Constant."""
    return node is not None and node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.outputs) == 1


def is_constant(value: ir.Value) -> bool:
    """Check that a value is an initializer or the output of a Constant node."""
    return value.is_initializer() or is_constant_node(value.producer())


def constant(value: ir.Value | None) -> Array | None:
    """Return the numbers known before the model runs: of a Constant node, or an initializer no caller can override."""
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        return None if value.const_value is None or value.is_graph_input() else value.const_value.numpy()
    if producer.op_type == "Identity" and producer.domain == "":
        return constant(producer.inputs[0])
    return constant_attribute(_constant_attribute(producer))


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, overridable or not, or of a Constant node, without reading its data."""
    producer = None if value is None else value.producer()
    if value is None or producer is None:
        return value.const_value if value is not None and value.is_initializer() else None
    attr = _constant_attribute(producer)
    if attr is not None and attr.type == ir.AttributeType.TENSOR:
        return attr.as_tensor()
    numbers = constant_attribute(attr)
    return None if numbers is None or numbers.dtype == object else ir.tensor(numbers)


def _constant_attribute(node: ir.Node) -> ir.Attr | None:
    if not is_constant_node(node) or len(node.attributes) != 1:
        return None
    attr = next(iter(node.attributes.values()))
    return None if attr.is_ref() else attr


def constant_attribute(attr: ir.Attr | None) -> Array | None:
    """Return the numbers that the attribute of a Constant node stands for; None for a sparse tensor."""
    if attr is None or attr.type == ir.AttributeType.TENSOR:
        return None if attr is None else attr.as_tensor().numpy()
    kinds: dict[str, Any] = {"int": np.int64, "ints": np.int64, "float": np.float32, "floats": np.float32}
    kind = attr.name.removeprefix("value_")
    if kind in kinds:
        return np.array(attr.value, dtype=kinds[kind])
    return np.array(attr.value, dtype=object) if kind.startswith("string") else None


def constant_ints(value: ir.Value | None, what: str) -> list[int]:
    """The integers `value` holds, in order; refuses when they are computed at run time."""
    array = constant(value)
    if array is None:
        raise Refusal(f"{what} is computed at run time")
    return [int(v) for v in array.reshape(-1)]


def non_negative(axes: list[int], of_rank: int) -> list[int]:
    """The same axes counted from the front."""
    return [axis + of_rank if axis < 0 else axis for axis in axes]


def _named(value: ir.Value | None) -> str:
    return "an input" if value is None else f"'{value.name}'"
