"""Which pairs of a matching are more than a guess."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from torchport.graph.matching.nodes import Matching
from torchport.graph.matching.sides import stripped
from torchport.irtools.node_reader import weight_type

_TOLD = ("structure", "numbers")  # why two nodes are partners, where that is more than a guess
_EITHER_WAY = ("Add", "Mul")


def beyond_doubt(found: Matching) -> set[ir.Value]:
    """The first model's tensors whose partner is no guess: the same node makes them, of what are partners themselves.

    Example:
        >>> found = match(a, b)
        >>> sure = {v: found.values[v] for v in beyond_doubt(found)}
    """
    sure = {v for v in found.values if v.producer() is None or weight_type(v) is not None}
    for one, other in found.nodes:
        alike = one.op_identifier() == other.op_identifier()
        if alike and (found.why[one] in _TOLD or _reads_the_same(one, other, found.values, sure)):
            sure.update(v for v in one.outputs if v in found.values)
    return sure


def _reads_the_same(
    one: ir.Node, other: ir.Node, partners: Mapping[ir.Value, ir.Value], sure: Collection[ir.Value]
) -> bool:
    ours = [_before_casts(v) for v in stripped(one)]
    theirs = [_before_casts(v) for v in stripped(other)]
    if any(v is not None and v not in sure for v in ours):
        return False
    read = [None if v is None else partners[v] for v in ours]
    return read == theirs or (one.op_type in _EITHER_WAY and read[::-1] == theirs)


def _before_casts(value: ir.Value | None) -> ir.Value | None:
    """What it was before it was made a float of another width."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and all(_is_float(v) for v in (*node.inputs, *node.outputs)):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()
