"""Find values and nodes of a graph by name, and what each node uses, outer values of its branches included."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import onnx_ir as ir

from torchport.errors import InputError

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class Names:
    """The values and nodes of a model's main graph by name."""

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self._model = model
        self.values: dict[str, ir.Value] = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values())}
        self.nodes: dict[str, ir.Node] = {}
        for node in graph:
            self.nodes.setdefault(str(node.name), node)
            self.values.update({v.name: v for v in node.outputs if v.name})

    def value(self, name: str) -> ir.Value:
        found = self.values.get(name)
        if found is None:
            raise self.unknown(name, "tensor", self.values)
        return found

    def unknown(self, name: str, what: str, known: Iterable[str]) -> InputError:
        """Why there is nothing of that name, with the closest ones."""
        inside = _holder(self._model, name)
        if inside is not None:
            return InputError(
                f"'{name}' is inside the body of node '{inside.name}' ({inside.op_type}), which runs as a whole",
                next_step=f"name a tensor of the main graph: what that node takes or gives, such as {_listed(inside)}",
            )
        close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
        return InputError(
            f"there is no {what} '{name}' in the model",
            next_step=f"did you mean {', '.join(close)}?" if close else "`torchport inspect` lists what there is",
        )


def _holder(model: ir.Model, name: str) -> ir.Node | None:
    """The node of the main graph in whose branches a value or node of that name is."""
    for node in model.graph:
        for graph in subgraphs(node):
            for inner in ir.traversal.RecursiveGraphIterator(graph):
                if name == inner.name or any(v.name == name for v in inner.outputs):
                    return node
            if any(v.name == name for v in (*graph.inputs, *graph.initializers.values())):
                return node
    return None


def _listed(node: ir.Node) -> str:
    return ", ".join(f"'{v.name}'" for v in (*node.outputs, *node.inputs) if v is not None and v.name)


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
