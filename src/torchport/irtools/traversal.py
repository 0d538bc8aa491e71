"""Walk over the nodes, values and subgraphs of a model, and find the values that a node uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Iterate over every node: of the graph, of its branches and loop bodies, and of the local functions."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def inlined(model: ir.Model) -> ir.Model:
    """The model with its local functions written out where they are called; a copy if it has any."""
    if model.functions:
        model = model.clone()
        InlinePass()(model)
    return model


def each_value(model: ir.Model) -> Iterator[ir.Value]:
    """Every value of a model once: of its graph, of branches and bodies inside it, and of its functions."""
    for body in bodies(model):
        for graph in (body, *body.subgraphs()):
            yield from dict.fromkeys(values_of(graph))


def graphs_in(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph, and those inside its nodes."""
    yield graph
    for node in graph:
        for inner in subgraphs(node):
            yield from graphs_in(inner)


def values_in(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value that a graph, or one inside it, defines."""
    for one in graphs_in(graph):
        yield from dict.fromkeys((*one.inputs, *one.initializers.values(), *(v for n in one for v in n.outputs)))


def _graphs_in(scope: ir.Graph | ir.Function) -> Iterator[ir.Graph | ir.Function]:
    """The scope and all bodies inside it, the inner ones first, as they are now."""
    for node in tuple(scope):
        for attr in node.attributes.values():
            for graph in _bodies(attr):
                yield from _graphs_in(graph)
    yield scope


def _bodies(attr: ir.Attr) -> Iterable[ir.Graph]:
    if attr.is_ref():
        return ()
    if attr.type == ir.AttributeType.GRAPH:
        return (attr.as_graph(),)
    return tuple(attr.as_graphs()) if attr.type == ir.AttributeType.GRAPHS else ()


def graphs_of(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """Every graph of the model: the main one, branches, loop bodies, functions."""
    for scope in scopes_of(model):
        yield from _graphs_in(scope)


def scopes_of(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """What has an opset of its own: the main graph, and each function."""
    return [model.graph, *model.functions.values()]


def values_of(graph: Any) -> list[ir.Value]:
    """Every value made in a graph or function: inputs, weights and what its nodes give."""
    weights = list(graph.initializers.values()) if hasattr(graph, "initializers") else []
    return [*graph.inputs, *weights, *(v for node in graph for v in node.outputs)]


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs a node holds itself, not those inside them."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref() or attribute.type not in _GRAPHS:
            continue
        found += [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()
    return found


def used_by(node: ir.Node) -> list[ir.Value]:
    """What a node needs: its inputs, and the outer values its branches use."""
    own = [v for v in node.inputs if v is not None]
    if not any(a.type in _GRAPHS for a in node.attributes.values()):
        return own
    return list(dict.fromkeys([*own, *(v for graph in subgraphs(node) for v in _outer(graph))]))


def _outer(graph: ir.Graph) -> list[ir.Value]:
    """Values that a graph and those inside it use and do not define."""
    defined = {*graph.inputs, *graph.initializers.values()}
    used: list[ir.Value] = []
    for node in graph:
        used += used_by(node)
        defined.update(node.outputs)
    used.extend(graph.outputs)
    return [v for v in dict.fromkeys(used) if v not in defined]


# Places in a model: some nodes, what goes into them and what comes out.

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


def bodies(model: ir.Model) -> list[ir.Graph]:
    """The model's graph and those of its functions, without the graphs inside these."""
    return [model.graph, *(function.graph for function in model.functions.values())]
