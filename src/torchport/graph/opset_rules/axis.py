"""Axes counted from the back came with opset 11: before, they are counted from the front, which takes the rank."""

from __future__ import annotations

import onnx_ir as ir

from torchport.graph.opset_rules.reduce import REDUCTIONS
from torchport.irtools import node_reader
from torchport.irtools.builder import Builder, Rules

_ONE_AXIS = (
    "ArgMax",
    "ArgMin",
    "Compress",
    "Concat",
    "Flatten",
    "Hardmax",
    "LogSoftmax",
    "Softmax",
    "Split",
)
_SEVERAL = (*REDUCTIONS, "Squeeze")


def axis_from_front(node: ir.Node, b: Builder) -> None:
    """axis = rank + axis, where it is negative."""
    axis = node_reader.integer(node, "axis", 0)
    if axis < 0:
        set_integer(node, "axis", axis + node_reader.rank(node.inputs[0]))


def axes_from_front(node: ir.Node, b: Builder) -> None:
    """axes[i] = rank + axes[i], where negative; the rank is that of the input."""
    _count_from_front(node, node_reader.integers(node, "axes"), extra=0)


def unsqueeze_from_front(node: ir.Node, b: Builder) -> None:
    """As above; the axes of Unsqueeze are those of its output, whose rank is the input's plus their number."""
    axes = node_reader.integers(node, "axes")
    _count_from_front(node, axes, extra=len(axes or []))


def _count_from_front(node: ir.Node, axes: list[int] | None, extra: int) -> None:
    if axes and min(axes) < 0:
        axes = node_reader.non_negative(axes, node_reader.rank(node.inputs[0]) + extra)
        node.attributes["axes"] = ir.AttrInt64s("axes", axes)


def set_integer(node: ir.Node, name: str, value: int) -> None:
    node.attributes[name] = ir.AttrInt64(name, value)


DOWN: Rules = {
    **{(op, 11): axis_from_front for op in _ONE_AXIS},
    **{(op, 11): axes_from_front for op in _SEVERAL},
    ("Unsqueeze", 11): unsqueeze_from_front,
}
UP: Rules = {}
