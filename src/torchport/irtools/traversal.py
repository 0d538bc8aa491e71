"""Walk over the nodes, values and subgraphs of a model, and find the values that a node uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

Scope = ir.Graph | ir.Function


def bodies(model: ir.Model) -> list[ir.Graph]:
    """Return the main graph and those of the local functions, without the graphs inside their nodes."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def graphs(within: ir.Model | ir.Graph) -> Iterator[ir.Graph]:
    """Iterate over every graph of a model or below a graph: branches, loop bodies and functions; outer ones first.

    `Model.graphs` of onnx-ir leaves the functions out.
    """
    for body in [within] if isinstance(within, ir.Graph) else bodies(within):
        yield from (body, *body.subgraphs())


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Iterate over every node: of the main graph, of its branches and loop bodies, and of the local functions."""
    for body in bodies(model):
        yield from body.all_nodes()


def all_values(within: ir.Model | ir.Graph) -> Iterator[ir.Value]:
    """Iterate over every value once, that of branches, loop bodies and functions too."""
    for graph in graphs(within):
        yield from own_values(graph)


def own_values(scope: Scope) -> list[ir.Value]:
    """Return the values a graph or function defines itself: inputs, initializers and the outputs of its nodes."""
    graph = scope.graph if isinstance(scope, ir.Function) else scope
    values = (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs))
    return list(dict.fromkeys(values))


def attribute_graphs(attribute: ir.Attr) -> list[ir.Graph]:
    """Return the graphs in an attribute; none where the caller of a function sets it."""
    if attribute.is_ref() or attribute.type not in _GRAPHS:
        return []
    return [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else list(attribute.as_graphs())


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs a node holds itself, without those inside them."""
    return [graph for attribute in node.attributes.values() for graph in attribute_graphs(attribute)]


def used_values(node: ir.Node) -> list[ir.Value]:
    """Return the values a node needs: its inputs, and the outer values its branches use."""
    own = [v for v in node.inputs if v is not None]
    if not any(a.type in _GRAPHS for a in node.attributes.values()):
        return own
    return list(dict.fromkeys([*own, *(v for graph in subgraphs(node) for v in captured_values(graph))]))


def captured_values(graph: ir.Graph) -> list[ir.Value]:
    """Return the outer values that a graph, or one inside it, uses."""
    defined = {*graph.inputs, *graph.initializers.values()}
    used: list[ir.Value] = []
    for node in graph:
        used += used_values(node)
        defined.update(node.outputs)
    used.extend(graph.outputs)
    return [v for v in dict.fromkeys(used) if v not in defined]


def inlined(model: ir.Model) -> ir.Model:
    """Return the model with its local functions written out where they are called; a copy if it has any."""
    if not model.functions:
        return model
    passes = ir.passes.Sequential(common.InlinePass(), common.RemoveUnusedFunctionsPass())
    return passes(model.clone()).model


@dataclasses.dataclass(frozen=True)
class Match:
    """A place in a model: some nodes, what goes into them and what comes out.

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
    return [(scope, node) for scope in scopes for node in scope.all_nodes()]


def opset_of(scope: ir.Model | Scope) -> int | None:
    """Return the version of ONNX's own operators that a model, graph or function imports, if it imports any."""
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
