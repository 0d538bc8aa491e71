"""Rules for Constant, ConstantOfShape, Range, If and Scan."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules

# Constant: numbers and strings as attributes of their own came in 12, other tensors than of floats in 9.


def plain_tensor(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    attr = next(iter(node.attributes.values()), None)
    if attr is None or attr.is_ref():
        raise Refusal("its value is set by the caller of the function")
    if attr.name in ("value", "sparse_value"):
        return None
    if attr.name.startswith("value_string"):
        strings = attr.value if attr.name.endswith("s") else [attr.value]
        data = [s.encode() if isinstance(s, str) else s for s in strings]
        shape = (len(data),) if attr.name.endswith("s") else ()
        text = np.array(data, dtype=object).reshape(shape)
        tensor: ir.TensorProtocol = ir.StringTensor(text, shape=ir.Shape(shape))
    else:
        tensor = ir.tensor(np.asarray(node_reader.constant_attribute(attr)))
    return [b.constant_tensor(tensor)]


def initializer_unless_float(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Below 9 a Constant holds floats alone; an initializer holds anything."""
    value = node_reader.attribute(node, "value")
    if value is None:
        raise Refusal("it holds no plain tensor")
    return [b.constant_tensor(value)]


# ConstantOfShape (9): a constant where the shape is known, Expand of a scalar where it is not.

_SMALL = 1 << 16  # elements worth storing


def expanded_scalar(node: ir.Node, b: Builder) -> list[ir.Value]:
    given = node_reader.attribute(node, "value")
    fill = np.zeros(1, dtype=np.float32) if given is None else given.numpy()
    shape = node_reader.required(node, 0)
    known = node_reader.constant(shape)
    if known is not None and np.prod(known) <= _SMALL:
        return [b.constant(np.full(known, fill.reshape(-1)[0], dtype=fill.dtype))]
    return [b.op("Expand", b.constant(fill.reshape(())), shape)]


# Range: came in 11, with ``stash_type`` in 27 for the half-precision types that came with it.

_WHOLE = (ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64)


def without_stash(node: ir.Node, b: Builder) -> None:
    """``stash_type`` bears on float16 and bfloat16 alone, which came with it: those are refused by their type."""
    node.attributes.pop("stash_type", None)


def count_the_places(node: ir.Node, b: Builder) -> list[ir.Value]:
    """start + step · [0, 1, ..n-1] with n = max(ceil((limit - start) / step), 0).

    [0, 1, ..n-1] are the places of the non-zeros among n ones. Only for integers, where every step is exact, and
    a constant step, whose sign is known.
    """
    start, limit, delta = (node_reader.required(node, i) for i in range(3))
    kind = node_reader.dtype(start)
    if kind not in _WHOLE:
        raise Refusal(f"it came in opset 11, and of {kind.name.lower()} it cannot be rewritten exactly")
    step = node_reader.constant_ints(delta, "its step")[0]
    known = [node_reader.constant(start), node_reader.constant(limit)]
    if known[0] is not None and known[1] is not None:
        return [b.constant(np.arange(int(known[0]), int(known[1]), step), kind.numpy())]
    first, last = (b.cast(v, ir.DataType.INT64) for v in (start, limit))
    places = _first_numbers(_count(first, last, step, b), b)
    numbers = b.op("Add", first, b.op("Mul", places, b.constant(step, np.int64)))
    return [b.cast(numbers, kind)]


def _count(first: ir.Value, last: ir.Value, step: int, b: Builder) -> ir.Value:
    """Integer division cuts towards zero, so a span below zero comes out as zero or less, and is cut to zero."""
    span = b.op("Sub", last, first) if step > 0 else b.op("Sub", first, last)
    size = abs(step)
    count = b.op("Div", b.op("Add", span, b.constant(size - 1, np.int64)), b.constant(size, np.int64))
    some = b.op("Greater", count, b.constant(0, np.int64))
    return b.op("Mul", count, b.cast(some, ir.DataType.INT64))


def _first_numbers(count: ir.Value, b: Builder) -> ir.Value:
    shape = b.op("Reshape", count, b.ints([1]))
    ones = b.op("ConstantOfShape", shape, value=ir.tensor(np.ones(1, dtype=np.int64)))
    return b.squeeze(b.op("NonZero", ones), [0])


# If and Scan: branches of different shapes came in 11; Scan was batched before 9 and counted axes from the front.


def branches_of_one_shape(node: ir.Node, b: Builder) -> None:
    then, other = (attr.as_graph() for attr in (node.attributes["then_branch"], node.attributes["else_branch"]))
    if not all(node_reader.same_shape(x, y) for x, y in zip(then.outputs, other.outputs, strict=True)):
        raise Refusal("branches not known to have one shape came in opset 11")


def scan_axes_from_front(node: ir.Node, b: Builder) -> None:
    axes = [a for name in ("scan_input_axes", "scan_output_axes") for a in node_reader.integers(node, name) or []]
    if any(axis < 0 for axis in axes):
        raise Refusal("axes counted from the back came in opset 11")


def unbatched(node: ir.Node, b: Builder) -> None:
    raise Refusal("it ran over batches before opset 9")


DOWN: Rules = {
    ("Constant", 12): plain_tensor,
    ("Constant", 9): initializer_unless_float,
    ("ConstantOfShape", 9): expanded_scalar,
    ("Range", 27): without_stash,
    ("Range", 11): count_the_places,
    ("If", 11): branches_of_one_shape,
    ("Scan", 11): scan_axes_from_front,
    ("Scan", 9): unbatched,
}
UP: Rules = {
    ("Scan", 9): unbatched,
}
