"""Recognize normalizations of the last axis that are written out.

(x − mean x) / √(mean (x − mean x)² + ε) · γ + β   →  LayerNormalization (opset 17)
x / √(mean x² + ε) · γ                             →  RMSNormalization (opset 23)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from torchport.irtools.node_reader import FLOATS
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.dataflow import (
    is_last_axis,
    last_size,
    made_by,
    number,
    only_user,
    other_input,
    row_constant,
)
from torchport.optimization.passes.graph_pass import GraphPass, Work, initializer, is_operator, replace
from torchport.optimization.result import OPENVINO
from torchport.tensors import Array

OPSETS = {"LayerNormalization": 17, "RMSNormalization": 23}


class Found(NamedTuple):
    """A normalization that is written out: its operator, its last node, its input, and its constants."""

    operator: str
    last: ir.Node
    x: ir.Value
    scale: Array | None
    bias: Array | None
    epsilon: float

    @property
    def kind(self) -> str:
        """Return its name in the report."""
        return "layer normalization" if self.operator == "LayerNormalization" else "RMS normalization"


def find(model: ir.Model) -> Iterator[Found]:
    """Iterate over the normalizations in a model."""
    for node in list(all_nodes(model)):
        if is_operator(node, "Sqrt"):
            found = _normalization(node)
            if found is not None:
                yield found


def _normalization(root: ir.Node) -> Found | None:
    add = made_by(root.inputs[0], "Add")
    if add is None:
        return None
    epsilon = next((e for e in map(number, add.inputs) if e is not None), None)
    mean = next((m for v in add.inputs if (m := made_by(v, "ReduceMean")) is not None), None)
    if epsilon is None or mean is None or not is_last_axis(mean):
        return None
    centered = _squared(mean.inputs[0])
    last = None if centered is None else _divided(root, centered)
    if centered is None or last is None or centered.dtype not in FLOATS:
        return None
    x = _uncentered(centered)
    size = last_size(centered)
    last, scale = _then(last, "Mul", size)
    bias = None
    if x is not None and scale is not None:
        last, bias = _then(last, "Add", size)
    operator = "RMSNormalization" if x is None else "LayerNormalization"
    return Found(operator, last, centered if x is None else x, scale, bias, epsilon) if size is not None else None


def _squared(value: ir.Value | None) -> ir.Value | None:
    """Return the value of which another is the square."""
    node = made_by(value, "Pow", "Mul")
    if node is None or (node.op_type == "Pow" and number(node.inputs[1]) != 2.0):
        return None
    return node.inputs[0] if node.op_type == "Pow" or node.inputs[0] is node.inputs[1] else None


def _divided(root: ir.Node, x: ir.Value) -> ir.Node | None:
    """Return the node that divides a value by the root."""
    node = only_user(root.outputs[0], "Div", "Reciprocal")
    if node is not None and node.op_type == "Reciprocal":
        inverse = node
        node = only_user(inverse.outputs[0], "Mul")
        return node if node is not None and other_input(node, inverse.outputs[0]) is x else None
    if node is None or node.inputs[1] is not root.outputs[0]:
        return None
    if node.inputs[0] is x:
        return node
    if number(node.inputs[0]) == 1.0:
        times = only_user(node.outputs[0], "Mul")
        return times if times is not None and other_input(times, node.outputs[0]) is x else None
    return None


def _uncentered(value: ir.Value) -> ir.Value | None:
    """Return what a value was before its mean was subtracted; None if none was."""
    node = made_by(value, "Sub")
    mean = None if node is None else made_by(node.inputs[1], "ReduceMean")
    if node is None or mean is None or mean.inputs[0] is not node.inputs[0] or not is_last_axis(mean):
        return None
    return node.inputs[0]


def _then(node: ir.Node, operator: str, size: int | None) -> tuple[ir.Node, Array | None]:
    """Return the node after one, with its row of constants; the node itself if no such one follows."""
    after = only_user(node.outputs[0], operator)
    row = None if after is None else row_constant(other_input(after, node.outputs[0]), size)
    return (node, None) if after is None or row is None else (after, row)


def _apply(model: ir.Model, work: Work) -> None:
    for found in find(model):
        opset, needed = model.opset_imports.get("", 0), OPSETS[found.operator]
        graph = found.last.graph
        if opset < needed:
            reason = f"{found.operator} is an operator from opset {needed} on, the model has {opset}"
            work.left(found.kind, found.last, reason)
        elif work.target == OPENVINO and needed > _OPENVINO:
            work.left(found.kind, found.last, "OpenVINO recognizes it by itself")
        elif isinstance(graph, ir.Graph) and found.x.dtype in FLOATS:
            work.looks_at(found.last)
            if work.permits(found.last):
                _fuse(found, graph, work)


_OPENVINO = 20  # newer operators than of this opset are left to it


def _fuse(found: Found, graph: ir.Graph, work: Work) -> None:
    assert found.x.dtype is not None
    base, kind = str(found.last.outputs[0].name), found.x.dtype.numpy()
    scale = np.ones(last_size(found.x) or 1, kind) if found.scale is None else found.scale.astype(kind)
    inputs = [found.x, initializer(graph, scale, f"{base}_scale")]
    inputs += [] if found.bias is None else [initializer(graph, found.bias.astype(kind), f"{base}_bias")]
    attributes = [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", found.epsilon)]
    node = ir.Node("", found.operator, inputs, attributes, name=found.last.name)
    replace(found.last, [node], [found.last.outputs[0]], [node.outputs[0]])
    work.found(found.kind, node, found.operator)


PASS = GraphPass(
    "normalizations",
    requires="a layer or RMS normalization of the last axis that is written out, in an opset that has its operator",
    ensures="it is one operator",
    apply=_apply,
)
