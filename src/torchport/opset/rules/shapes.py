"""Rules for Shape, Reshape, Squeeze, Unsqueeze, Pad and DepthToSpace."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport import tensors
from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.node_reader import Refusal
from torchport.opset.rules import Rules

# Shape: ``start`` and ``end`` came in 15; before, the whole shape is taken and sliced, which clamps the same way.

_END = 2**31 - 1


def whole_then_sliced(node: ir.Node, b: Builder) -> list[ir.Value]:
    start, end = node_reader.integer(node, "start", 0), node_reader.integer(node, "end", _END)
    whole = b.op("Shape", node_reader.required(node, 0))
    return [whole if (start, end) == (0, _END) else b.slice(whole, start, end)]


# Reshape: ``allowzero`` came in 14; before, a 0 always copies the input's dimension at that place.


def zero_by_inference(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """With ``allowzero`` a 0 means no elements. Written as -1 it comes out as 0 too: 0 elements / (the rest) = 0.

    PyTorch's exporter sets ``allowzero`` on nearly every Reshape, so shapes computed at run time are carried over
    as well: ``shape - (shape == 0)`` turns a 0 into -1. Two zeros at once would be two -1, which engines refuse.
    """
    if not node_reader.integer(node, "allowzero", 0):
        return None
    x, shape = node_reader.required(node, 0), node_reader.required(node, 1)
    known = node_reader.constant(shape)
    if known is not None:
        return [b.op("Reshape", x, _constant_shape(known, shape, b))]
    zero = b.cast(b.op("Equal", shape, b.ints([0])), ir.DataType.INT64)
    return [b.op("Reshape", x, b.op("Sub", shape, zero))]


def _constant_shape(known: tensors.Array, shape: ir.Value, b: Builder) -> ir.Value:
    zeros = int(np.count_nonzero(known == 0))
    if zeros > 1:
        raise Refusal("two dimensions of its shape are 0")
    return b.ints([int(v) - (v == 0) for v in known]) if zeros else shape


# Squeeze and Unsqueeze: axes moved from attribute to input in opset 13.


def axes_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    """A constant list of axes becomes the attribute; Squeeze may have none."""
    x, given = node_reader.required(node, 0), node_reader.input_at(node, 1)
    axes = node_reader.constant_ints(given, "the list of axes") if given is not None else None
    return [b.op(node.op_type, x, axes=axes)]


def axes_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    axes = node_reader.integers(node, "axes")
    x = node_reader.required(node, 0)
    return [b.op(node.op_type, x) if axes is None else b.op(node.op_type, x, b.ints(axes))]


# Pad: widths became an input in 11, ``axes`` came in 18, mode ``wrap`` in 19.


def no_wrap(node: ir.Node, b: Builder) -> None:
    if node_reader.text(node, "mode", "constant") == "wrap":
        raise Refusal("mode 'wrap' came in opset 19")


def widths_for_all_axes(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """Widths of some axes become widths of all, zero for the others.

    With the widths p = [b_0.., e_0..] of the axes a_0.., ``full[a_i] = b_i`` and ``full[rank + a_i] = e_i``. Widths
    computed at run time are picked from [p.., 0] by a constant list of places.
    """
    given = node_reader.input_at(node, 3)
    if given is None:
        return None
    x, widths = node_reader.required(node, 0), node_reader.required(node, 1)
    rank = node_reader.rank(x)
    axes = node_reader.non_negative(node_reader.constant_ints(given, "the list of axes"), rank)
    places = [2 * len(axes)] * (2 * rank)
    for i, axis in enumerate(axes):
        places[axis], places[rank + axis] = i, len(axes) + i
    full = pick(b, widths, b.ints([0]), places)
    return [b.op("Pad", x, full, node_reader.input_at(node, 2), mode=node_reader.text(node, "mode", "constant"))]


def pick(b: Builder, values: ir.Value, rest: ir.Value, places: list[int]) -> ir.Value:
    """``concat(values, rest)[places]``, computed now when it can be."""
    first, second = node_reader.constant(values), node_reader.constant(rest)
    if first is not None and second is not None:
        return b.constant(np.concatenate([first.reshape(-1), second.reshape(-1)])[places])
    return b.op("Gather", b.op("Concat", values, rest, axis=0), b.ints(places), axis=0)


def widths_to_attribute(node: ir.Node, b: Builder) -> list[ir.Value]:
    """Constant widths and fill value become attributes; the fill is a float32 there, so it has to be one."""
    widths = node_reader.constant_ints(node_reader.required(node, 1), "the list of pad widths")
    filler = node_reader.input_at(node, 2)
    fill = node_reader.constant(filler) if filler is not None else np.zeros(())
    if fill is None:
        raise Refusal("the fill value is computed at run time")
    number = float(np.float32(fill.reshape(-1)[0]))
    if number != fill.reshape(-1)[0] and not np.isnan(number):
        raise Refusal("the fill value is no float32")
    mode = node_reader.text(node, "mode", "constant")
    return [b.op("Pad", node_reader.required(node, 0), mode=mode, pads=widths, value=number)]


def widths_to_input(node: ir.Node, b: Builder) -> list[ir.Value]:
    x, widths = node_reader.required(node, 0), node_reader.integers(node, "pads") or []
    fill = b.scalar_like(node_reader.real(node, "value", 0.0), x)
    return [b.op("Pad", x, b.ints(widths), fill, mode=node_reader.text(node, "mode", "constant"))]


# DepthToSpace: mode ``CRD`` (PyTorch's pixel_shuffle) came in 11; it is a Reshape, a Transpose and a Reshape.


def column_row_depth(node: ir.Node, b: Builder) -> list[ir.Value] | None:
    """(N, C, H, W) as (N, C/s², s, s, H, W), turned to (N, C/s², H, s, W, s), read as (N, C/s², H·s, W·s)."""
    if node_reader.text(node, "mode", "DCR") == "DCR":
        return None
    x, s = node_reader.required(node, 0), node_reader.integer(node, "blocksize", 1)
    channels = node_reader.static_dim(x, 1)
    if channels is None:
        raise Refusal("mode 'CRD' came in opset 11, and the number of channels is not known")
    n, h, w = (b.size(x, axis) for axis in (0, 2, 3))
    depth, block = b.ints([channels // (s * s)]), b.ints([s])
    split = b.op("Reshape", x, b.op("Concat", n, depth, block, block, h, w, axis=0))
    turned = b.op("Transpose", split, perm=[0, 1, 4, 2, 5, 3])
    sizes = [n, depth, b.op("Mul", h, block), b.op("Mul", w, block)]
    return [b.op("Reshape", turned, b.op("Concat", *sizes, axis=0))]


DOWN: Rules = {
    ("Shape", 15): whole_then_sliced,
    ("Reshape", 14): zero_by_inference,
    ("Squeeze", 13): axes_to_attribute,
    ("Unsqueeze", 13): axes_to_attribute,
    ("Pad", 19): no_wrap,
    ("Pad", 18): widths_for_all_axes,
    ("Pad", 11): widths_to_attribute,
    ("DepthToSpace", 11): column_row_depth,
}
UP: Rules = {
    ("Squeeze", 13): axes_to_input,
    ("Unsqueeze", 13): axes_to_input,
    ("Pad", 11): widths_to_input,
}
