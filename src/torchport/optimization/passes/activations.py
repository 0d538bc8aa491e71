"""Recognize activations that are written out.

x/2 · (1 + erf(x / √2))                        →  Gelu
x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))   →  Gelu, approximate="tanh"
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.dataflow import close, factors, made_by, number, only_user, other_input
from torchport.optimization.passes.graph_pass import GraphPass, Work, is_operator, replace

OPSET = 20  # the first with Gelu


class Found(NamedTuple):
    """An activation that is written out: its last node, what it is of, and its form."""

    kind: str
    last: ir.Node
    x: ir.Value
    approximate: str


def find(model: ir.Model) -> Iterator[Found]:
    """Iterate over the activations in a model."""
    for node in list(all_nodes(model)):
        if is_operator(node, "Erf", "Tanh"):
            found = _gelu(node)
            if found is not None:
                yield found


def _gelu(node: ir.Node) -> Found | None:
    x = _erf_of(node) if node.op_type == "Erf" else _tanh_of(node)
    plus_one = only_user(node.outputs[0], "Add")
    if x is None or plus_one is None or number(other_input(plus_one, node.outputs[0])) != 1.0:
        return None
    last = only_user(plus_one.outputs[0], "Mul")
    while last is not None:
        scale, rest = factors(last.outputs[0])
        rest = [value for value in rest if value is not plus_one.outputs[0]]
        if close(scale, 0.5) and rest == [x]:
            return Found("gelu", last, x, "none" if node.op_type == "Erf" else "tanh")
        last = only_user(last.outputs[0], "Mul", "Div")
    return None


def _erf_of(node: ir.Node) -> ir.Value | None:
    scale, rest = factors(node.inputs[0])
    return rest[0] if len(rest) == 1 and close(scale, 1 / math.sqrt(2)) else None


def _tanh_of(node: ir.Node) -> ir.Value | None:
    scale, rest = factors(node.inputs[0])
    add = made_by(rest[0], "Add") if len(rest) == 1 else None
    if add is None or not close(scale, math.sqrt(2 / math.pi)):
        return None
    for x in add.inputs:
        small, cube = factors(other_input(add, x))
        if x is not None and close(small, 0.044715) and _is_cube(cube, x):
            return x
    return None


def _is_cube(values: list[ir.Value], x: ir.Value) -> bool:
    if len(values) != 1:
        return len(values) == 3 and all(value is x for value in values)
    power = made_by(values[0], "Pow")
    return power is not None and power.inputs[0] is x and number(power.inputs[1]) == 3.0


def _apply(model: ir.Model, work: Work) -> None:
    for found in find(model):
        opset = model.opset_imports.get("", 0)
        if opset < OPSET:
            work.left(found.kind, found.last, f"Gelu is an operator from opset {OPSET} on, the model has {opset}")
            continue
        work.looks_at(found.last)
        if found.x.graph is not None and found.last.graph is not None and work.permits(found.last):
            attributes = [ir.AttrString("approximate", found.approximate)] if found.approximate != "none" else []
            gelu = ir.Node("", "Gelu", [found.x], attributes, name=found.last.name)
            replace(found.last, [gelu], [found.last.outputs[0]], [gelu.outputs[0]])
            work.found(found.kind, gelu, "Gelu")


PASS = GraphPass(
    "activations",
    requires=f"a Gelu that is written out, by Erf or Tanh, in a model of opset {OPSET} or later",
    ensures="it is one operator",
    apply=_apply,
)
