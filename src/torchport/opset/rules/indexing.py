"""Rules for Gather, Scatter, OneHot, Slice, TopK, Trilu and Split."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules

# Gather, ScatterElements and OneHot: indices counted from the back came in 11, with ScatterElements for Scatter.


def from_front(b: Builder, indices: ir.Value, size: ir.Value) -> ir.Value:
    """i + size where i < 0, else i, in arithmetic every opset has: i + size · (i < 0).

    The comparison is made in float32: below 9 integers cannot be compared, and the cast keeps the sign.
    """
    kind = node_reader.dtype(indices)
    below = b.op("Less", b.cast(indices, ir.DataType.FLOAT), b.constant(0, np.float32))
    return b.op("Add", indices, b.op("Mul", b.cast(below, kind), b.cast(size, kind)))


def _scalar_size(b: Builder, data: ir.Value, axis: int) -> ir.Value:
    known = node_reader.static_dim(data, axis)
    if known is not None:
        return b.constant(known, np.int64)
    return b.op("Gather", b.op("Shape", data), b.constant(axis, np.int64), axis=0)


def _known_from_front(b: Builder, indices: ir.Value, data: ir.Value, axis: int) -> ir.Value:
    known = node_reader.constant(indices)
    if known is not None and known.min(initial=0) >= 0:
        return indices
    size = node_reader.static_dim(data, axis)
    if known is not None and size is not None:
        return b.constant(np.where(known < 0, known + size, known).astype(known.dtype))
    return from_front(b, indices, _scalar_size(b, data, axis))


def gather(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    data, indices = node_reader.required(node, 0), node_reader.required(node, 1)
    known = node_reader.constant(indices)
    if known is not None and known.min(initial=0) >= 0:
        return None
    axis = _front_axis(node, data)
    return [b.op("Gather", data, _known_from_front(b, indices, data, axis), axis=axis)]


def scatter_elements(node: ir.Node, b: Builder) -> list[ir.Value]:
    data, indices, updates = (node_reader.required(node, i) for i in range(3))
    axis = _front_axis(node, data)
    return [b.op("Scatter", data, _known_from_front(b, indices, data, axis), updates, axis=axis)]


def scatter(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Scatter is ScatterElements by its old name."""
    return [b.op("ScatterElements", *node.inputs, axis=node_reader.integer(node, "axis", 0))]


def no_extreme_reduction(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "reduction", "none") in ("max", "min"):
        raise Refusal("reduction max or min came in opset 18")


def one_hot(node: ir.Node, b: Builder) -> list[ir.Value]:
    indices, depth, values = (node_reader.required(node, i) for i in range(3))
    if node_reader.dtype(indices) not in (ir.DataType.INT64, ir.DataType.INT32):
        raise Refusal("its indices are no int32 or int64")
    axis = node_reader.integer(node, "axis", -1)
    axis = axis if axis >= -1 else axis + node_reader.rank(indices) + 1
    known = node_reader.constant(indices)
    if known is None or known.min(initial=0) < 0:
        indices = _within(b, indices, b.op("Reshape", depth, b.ints([])))
    return [b.op("OneHot", indices, depth, values, axis=axis)]


def _within(b: Builder, indices: ir.Value, depth: ir.Value) -> ir.Value:
    """i + depth where -depth <= i < 0, else i: engines add the depth once more, so what is out of range stays so."""
    moved = from_front(b, indices, depth)
    return from_front(b, moved, b.op("Neg", b.cast(depth, node_reader.dtype(indices))))


def _front_axis(node: ir.Node, data: ir.Value) -> int:
    axis = node_reader.integer(node, "axis", 0)
    return axis if axis >= 0 else axis + node_reader.rank(data)


# Slice: bounds became inputs, with steps, in 10; axes may count from the back since 11.


def axes_from_front(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    given = node_reader.input_at(node, 3)
    if given is None:
        return None
    axes = node_reader.constant_ints(given, "the list of axes")
    if min(axes, default=0) >= 0:
        return None
    inputs = list(node.inputs)
    inputs[3] = b.ints(node_reader.non_negative(axes, node_reader.rank(inputs[0])))
    return [b.op("Slice", *inputs)]


def bounds_to_attributes(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Constant bounds become attributes; the attribute form knows no steps but 1."""
    starts = node_reader.constant_ints(node_reader.required(node, 1), "the list of starts")
    ends = node_reader.constant_ints(node_reader.required(node, 2), "the list of ends")
    axes, steps = node_reader.input_at(node, 3), node_reader.input_at(node, 4)
    if steps is not None and any(s != 1 for s in node_reader.constant_ints(steps, "the list of steps")):
        raise Refusal("steps other than 1 came in opset 10")
    chosen = node_reader.constant_ints(axes, "the list of axes") if axes is not None else None
    return [b.op("Slice", node_reader.required(node, 0), starts=starts, ends=ends, axes=chosen)]


def bounds_to_inputs(node: ir.Node, b: Builder) -> list[ir.Value]:
    starts, ends = node_reader.integers(node, "starts") or [], node_reader.integers(node, "ends") or []
    axes = node_reader.integers(node, "axes") or list(range(len(starts)))
    return [b.op("Slice", node_reader.required(node, 0), b.ints(starts), b.ints(ends), b.ints(axes))]


# TopK: k became an input in 10; smallest first, unsorted, and integers came in 11.


def largest_only(node: ir.Node, b: Builder) -> list[ir.Value]:
    """The k smallest of x are the k largest of -x, with their signs turned back.

    Integers go by way of float64, which holds those of 32 bits exactly. Sorted is one of the orders "unsorted" allows.
    """
    x, k = node_reader.required(node, 0), node_reader.required(node, 1)
    kind = node_reader.dtype(x)
    if kind not in node_reader.FLOATS and kind not in node_reader.SMALL_INTS:
        raise Refusal(f"{kind.name.lower()} came in opset 11")
    axis = node_reader.integer(node, "axis", -1)
    axis = axis if axis >= -1 else axis + node_reader.rank(x)
    largest = node_reader.integer(node, "largest", 1)
    data = x if kind in node_reader.FLOATS else b.cast(x, ir.DataType.DOUBLE)
    data = data if largest else b.op("Neg", data)
    values, indices = b.ops("TopK", [data, k], 2, axis=axis)
    values = values if largest else b.op("Neg", values)
    return [b.cast(values, kind), indices]


def k_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    k = node_reader.constant_ints(node_reader.required(node, 1), "k")[0]
    return list(b.ops("TopK", [node_reader.required(node, 0)], 2, axis=node_reader.integer(node, "axis", -1), k=k))


def k_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    k = b.ints([node_reader.integer(node, "k", 1)])
    return list(b.ops("TopK", [node_reader.required(node, 0), k], 2, axis=node_reader.integer(node, "axis", -1)))


# Trilu (14): a comparison of row and column numbers chooses between the input and zero.

_SMALL = 1 << 16  # elements of a mask worth storing


def choose_by_place(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Keep x[.., i, j] where j >= i + k (upper) or j <= i + k (lower)."""
    x = node_reader.required(node, 0)
    keep = _known_mask(node, x, b) or _mask(node, x, b)
    if node_reader.dtype(x) == ir.DataType.BOOL:
        return [b.op("And", x, keep)]
    return [b.op("Where", keep, x, b.scalar_like(0, x))]


def _known_mask(node: ir.Node, x: ir.Value, b: Builder) -> ir.Value | None:
    given = node_reader.input_at(node, 1)
    k = node_reader.constant(given) if given is not None else np.zeros((), dtype=np.int64)
    rank = node_reader.rank(x)
    height, width = node_reader.static_dim(x, rank - 2), node_reader.static_dim(x, rank - 1)
    if k is None or height is None or width is None or height * width > _SMALL:
        return None
    ones = np.ones((height, width), dtype=bool)
    first = int(k.reshape(-1)[0])
    return b.constant(np.triu(ones, first) if node_reader.integer(node, "upper", 1) else np.tril(ones, first))


def _mask(node: ir.Node, x: ir.Value, b: Builder) -> ir.Value:
    rank, k = node_reader.rank(x), node_reader.input_at(node, 1)
    rows, columns = (_numbers(x, axis, b) for axis in (rank - 2, rank - 1))
    border = b.unsqueeze(rows, [1])
    border = border if k is None else b.op("Add", border, b.op("Reshape", k, b.ints([1])))
    outside = "Less" if node_reader.integer(node, "upper", 1) else "Greater"
    return b.op("Not", b.op(outside, columns, border))


def _numbers(x: ir.Value, axis: int, b: Builder) -> ir.Value:
    size = b.squeeze(b.size(x, axis), [0])
    return b.op("Range", b.constant(0, np.int64), size, b.constant(1, np.int64))


# Split: sizes moved from attribute to input in 13; ``num_outputs`` with a shorter last part came in 18.


def parts_to_sizes(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """Before 18 parts without sizes are all equal, so sizes are written out: n-1 times ceil(d/n), and the rest."""
    if node_reader.attribute(node, "num_outputs") is None:
        return None
    x, axis, count = node_reader.required(node, 0), node_reader.integer(node, "axis", 0), len(node.outputs)
    size = node_reader.static_dim(x, axis)
    if size is not None and size % count == 0:
        return list(b.ops("Split", [x], count, axis=axis))
    if size is not None:
        part = -(-size // count)
        sizes = b.ints([part] * (count - 1) + [size - part * (count - 1)])
    else:
        sizes = _sizes_at_run_time(x, axis, count, b)
    return list(b.ops("Split", [x, sizes], count, axis=axis))


def _sizes_at_run_time(x: ir.Value, axis: int, count: int, b: Builder) -> ir.Value:
    size = b.size(x, axis if axis >= 0 else axis + node_reader.rank(x))
    part = b.op("Div", b.op("Add", size, b.ints([count - 1])), b.ints([count]))
    rest = b.op("Sub", size, b.op("Mul", part, b.ints([count - 1])))
    return b.op("Concat", *([part] * (count - 1)), rest, axis=0)


def sizes_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    given = node_reader.input_at(node, 1)
    sizes = node_reader.constant_ints(given, "the list of sizes") if given is not None else None
    axis = node_reader.integer(node, "axis", 0)
    return list(b.ops("Split", [node_reader.required(node, 0)], len(node.outputs), axis=axis, split=sizes))


def sizes_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    sizes = node_reader.integers(node, "split")
    inputs = [node_reader.required(node, 0)] + ([b.ints(sizes)] if sizes is not None else [])
    return list(b.ops("Split", inputs, len(node.outputs), axis=node_reader.integer(node, "axis", 0)))


def name_the_parts(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """From 18 on a Split without sizes says into how many parts; before, it had to divide evenly."""
    if node_reader.input_at(node, 1) is not None:
        return None
    x, axis, count = node_reader.required(node, 0), node_reader.integer(node, "axis", 0), len(node.outputs)
    if count < 1:
        raise Refusal("it has no outputs")
    return list(b.ops("Split", [x], count, axis=axis, num_outputs=count))


DOWN: Rules = {
    ("Gather", 11): gather,
    ("ScatterElements", 18): no_extreme_reduction,
    ("ScatterND", 18): no_extreme_reduction,
    ("ScatterElements", 11): scatter_elements,
    ("OneHot", 11): one_hot,
    ("Slice", 11): axes_from_front,
    ("Slice", 10): bounds_to_attributes,
    ("TopK", 11): largest_only,
    ("TopK", 10): k_to_attribute,
    ("Trilu", 14): choose_by_place,
    ("Split", 18): parts_to_sizes,
    ("Split", 13): sizes_to_attribute,
}
UP: Rules = {
    ("Scatter", 11): scatter,
    ("Slice", 10): bounds_to_inputs,
    ("TopK", 10): k_to_input,
    ("Split", 13): sizes_to_input,
    ("Split", 18): name_the_parts,
}
