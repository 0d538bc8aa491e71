"""Split: sizes moved from attribute to input in 13; ``num_outputs`` with a shorter last part came in 18."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules
from torchport.irtools.node_reader import Refusal


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


DOWN: Rules = {("Split", 18): parts_to_sizes, ("Split", 13): sizes_to_attribute}
UP: Rules = {("Split", 13): sizes_to_input, ("Split", 18): name_the_parts}
