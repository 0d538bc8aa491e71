"""Places in a model: some nodes, what goes into them and what comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

Scope = ir.Graph | ir.Function


@dataclasses.dataclass(frozen=True)
class Match:
    """One place.

    Attributes:
        nodes: what is there, in the order of the graph.
        inputs: what goes in: by the pattern's variables, or ``#0``, ``#1`` for a node's inputs.
        outputs: what comes out, in the pattern's order.
        attributes: by the pattern's variables, or a node's own.
        scope: the main graph or the function the nodes are in, perhaps in a branch.
        bound: all that a pattern in Python gives to its replacement; None for the others.
    """

    nodes: tuple[ir.Node, ...]
    inputs: Mapping[str, ir.Value | None]
    outputs: tuple[ir.Value, ...]
    attributes: Mapping[str, ir.Attr | None]
    scope: Scope
    bound: Mapping[str, Any] | None = None


def scoped_nodes(model: ir.Model) -> list[tuple[Scope, ir.Node]]:
    """Every node, with the main graph or the function it belongs to."""
    scopes: list[Scope] = [model.graph, *model.functions.values()]
    return [(scope, node) for scope in scopes for node in ir.traversal.RecursiveGraphIterator(scope)]


def is_constant(node: ir.Node | None) -> bool:
    """Whether it is a Constant of ONNX's own."""
    return node is not None and node.op_type == "Constant" and node.domain == ""


def opset_of(scope: Scope) -> int | None:
    """The version of ONNX's own operators that a scope has, if it has any."""
    return scope.opset_imports.get("", scope.opset_imports.get("ai.onnx"))


def in_order(nodes: Any) -> tuple[ir.Node, ...]:
    """Nodes of one graph in its order."""
    some = set(nodes)
    graph = next(iter(some)).graph if some else None
    return tuple(some) if graph is None or len(some) == 1 else tuple(n for n in graph if n in some)


def current(match: Match, moved: Mapping[ir.Value, ir.Value]) -> Match:
    """The match after others were replaced, whose outputs may go into it."""

    def now(value: Any) -> Any:
        while isinstance(value, ir.Value) and value in moved:
            value = moved[value]
        return value

    inputs = {name: now(value) for name, value in match.inputs.items()}
    bound = None if match.bound is None else {name: now(value) for name, value in match.bound.items()}
    return dataclasses.replace(match, inputs=inputs, bound=bound)
