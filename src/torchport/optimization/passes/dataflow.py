"""Questions about what a value is made of and what becomes of it, which the recognition of patterns asks."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from torchport.irtools.node_reader import constant, input_at, integers
from torchport.optimization.passes.graph_pass import is_operator


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Return the node that makes a value, if it is one of ONNX's own operators of these names."""
    node = None if value is None else value.producer()
    return node if is_operator(node, *operators) else None


def only_user(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Return the one node that reads a value, if nothing else does and it has one of these names."""
    if value is None or value.is_graph_output() or len(value.uses()) != 1:
        return None
    node = next(iter(value.uses())).node
    return node if is_operator(node, *operators) else None


def number(value: ir.Value | None) -> float | None:
    """Return the one number that a constant holds."""
    array = constant(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fiu":
        return None
    return float(array.reshape(()))


def other_input(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """Return the other of the two inputs of a node."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def close(value: float | None, wanted: float) -> bool:
    """Check a number that was rounded to the model's precision."""
    return value is not None and math.isclose(value, wanted, rel_tol=1e-3)


def factors(value: ir.Value | None, depth: int = 6) -> tuple[float, list[ir.Value]]:
    """Return what is multiplied to make a value: the constants as one number, and the other values."""
    known = number(value)
    if known is not None:
        return known, []
    mul = made_by(value, "Mul", "Div")
    if value is None or mul is None or depth == 0:
        return 1.0, [] if value is None else [value]
    if mul.op_type == "Div":
        divisor = number(mul.inputs[1])
        if not divisor:
            return 1.0, [value]
        scale, rest = factors(mul.inputs[0], depth - 1)
        return scale / divisor, rest
    found = [factors(v, depth - 1) for v in mul.inputs]
    return found[0][0] * found[1][0], [*found[0][1], *found[1][1]]


def reduced_axes(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction: an attribute until opset 17, an input later."""
    axes = integers(node, "axes")
    if axes is not None:
        return axes
    array = constant(input_at(node, 1))
    return None if array is None else [int(n) for n in array.reshape(-1)]


def is_last_axis(node: ir.Node) -> bool:
    """Check that a node reduces the last axis and keeps it."""
    axes, value = reduced_axes(node), node.inputs[0]
    rank = None if value is None or value.shape is None else len(value.shape)
    return axes in ([-1], [None if rank is None else rank - 1]) and node.attributes.get_int("keepdims", 1) == 1


def row_constant(value: ir.Value | None, size: int | None) -> np.ndarray | None:
    """Return a constant of one number for each element of the last axis, as a vector."""
    array = constant(value)
    if array is None or size is None or array.size != size or array.shape[-1:] != (size,):
        return None
    return array.reshape(-1)


def last_size(value: ir.Value | None) -> int | None:
    """Return the size of the last axis, if it is known."""
    if value is None or value.shape is None or not len(value.shape):
        return None
    size = value.shape[-1]
    return size if isinstance(size, int) else None


def size_of(value: ir.Value, axis: int, graph: ir.Graph) -> ir.Node:
    """Return a node that reads a size, off an input of the model if one has it: then all layers share it."""
    dim = (value.shape or ())[axis]
    if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
        places = ((v, n) for v in graph.inputs for n, d in enumerate(v.shape or ()) if d == dim)
        value, axis = next(places, (value, axis))
    return ir.Node("", "Shape", [value], [ir.AttrInt64("start", axis), ir.AttrInt64("end", axis + 1)])
