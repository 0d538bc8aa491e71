"""Pad: widths became an input in 11, ``axes`` came in 18, mode ``wrap`` in 19."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


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


DOWN: Rules = {("Pad", 19): no_wrap, ("Pad", 18): widths_for_all_axes, ("Pad", 11): widths_to_attribute}
UP: Rules = {("Pad", 11): widths_to_input}
