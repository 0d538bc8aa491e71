"""Put a model in order: what it computes stays the same, and what it says of types and shapes stays true."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from torchport.editing.selection import forget_unused_domains
from torchport.editing.transaction import in_place
from torchport.errors import InputError
from torchport.irtools.metadata import ANNOTATION
from torchport.irtools.serialization import pour
from torchport.irtools.traversal import all_values, bodies, graphs, subgraphs, used_values

_GLANCE = 1024  # elements of a weight to look at before all of it is read


@in_place
def sort(model: ir.Model) -> int:
    """Put nodes behind what they need, in branches, bodies and functions too; others keep their order.

    Returns:
        How many nodes have another place.

    Raises:
        InputError: nodes need each other.

    Example:
        >>> tp.graph.sort(model)
    """
    before = {graph: list(graph) for graph in graphs(model)}
    try:
        for body in bodies(model):
            body.sort()
    except ValueError as error:
        raise InputError(
            "nodes of the model need each other, so none can be first", next_step="`torchport lint` shows the circle"
        ) from error
    return sum(old is not new for graph, nodes in before.items() for old, new in zip(nodes, graph, strict=True))


@in_place
def deduplicate(model: ir.Model) -> int:
    """Keep equal weights once, also where a branch or body has its own copy of one outside.

    Weights are read piece by piece, and only those that others are like at first sight. Those that are inputs or
    outputs stay, as their names are the model's interface.

    Returns:
        How many weights were taken out.

    Example:
        >>> tp.graph.deduplicate(model)
    """
    alike: dict[Hashable, list[ir.Value]] = {}
    for value in _mergeable(model):
        alike.setdefault(_first_sight(value), []).append(value)
    marks = {v: (key, _digest(v)) for key, group in alike.items() if len(group) > 1 for v in group}
    return sum(_merge(body, marks, {}) for body in bodies(model))


def _annotated(model: ir.Model) -> set[str]:
    """The tensors that quantization annotations name."""
    return {name for v in all_values(model) for name in v.meta.get(ANNOTATION, {}).values()}


def _mergeable(model: ir.Model) -> list[ir.Value]:
    named = _annotated(model)
    weights = [v for g in graphs(model) for v in g.initializers.values()]
    free = [v for v in weights if not v.is_graph_input() and not v.is_graph_output() and v.const_value is not None]
    return [v for v in free if v.name not in named and not v.meta.get(ANNOTATION)]


def _first_sight(value: ir.Value) -> Hashable:
    tensor: Any = value.const_value
    if tensor.dtype == ir.DataType.STRING:
        start: Hashable = tuple(tensor.string_data())
    else:  # to look into numbers of 4 bits would unpack them all
        start = tensor.numpy().flat[:_GLANCE].tobytes() if tensor.dtype.bitwidth >= 8 else b""
    return tensor.dtype, tuple(tensor.shape.numpy()), start


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: Any, /) -> None:
        self._hash.update(data)

    def value(self) -> bytes:
        return self._hash.digest()


def _digest(value: ir.Value) -> bytes:
    tensor = value.const_value
    assert tensor is not None
    digest = _Digest()
    if tensor.dtype != ir.DataType.STRING:  # of which the first sight has all
        pour(tensor, digest)
    return digest.value()


def _merge(graph: ir.Graph, marks: Mapping[ir.Value, Hashable], outer: Mapping[Hashable, ir.Value]) -> int:
    seen, count = dict(outer), 0
    for value in [v for v in graph.initializers.values() if v in marks]:
        kept = seen.setdefault(marks[value], value)
        if kept is not value:
            value.replace_all_uses_with(kept)
            del graph.initializers[str(value.name)]
            count += 1
    return count + sum(_merge(inner, marks, seen) for node in graph for inner in subgraphs(node))


@in_place
def remove_unused(model: ir.Model) -> int:
    """Take out what no output needs: nodes, weights, functions and imports, in branches, bodies and functions too.

    The model's inputs stay, as do optional outputs of nodes that are needed.

    Returns:
        How many of these were taken out.

    Example:
        >>> tp.graph.remove_unused(model)
    """
    count, more = 0, 1
    while more:  # a function that is gone may have been all that called another
        named = _annotated(model)
        more = sum(_sweep(body, named) for body in bodies(model)) + drop_functions(model)
        count += more
    imports = _imports(model)
    forget_unused_domains(model)
    return count + imports - _imports(model)


def _imports(model: ir.Model) -> int:
    return len(model.graph.opset_imports) + sum(len(f.opset_imports) for f in model.functions.values())


def _sweep(graph: ir.Graph, named: set[str]) -> int:
    count = sum(_sweep(inner, named) for node in graph for inner in subgraphs(node))
    live: set[ir.Node] = set()
    waiting = [v.producer() for v in graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node.graph is graph and node not in live:
            live.add(node)
            waiting += [v.producer() for v in used_values(node)]
    dead = [node for node in graph if node not in live]
    take_out(dead)
    return count + len(dead) + drop_weights([v for v in graph.initializers.values() if v.name not in named])


def take_out(nodes: list[ir.Node]) -> None:
    """Remove nodes of one graph that nobody else needs, with what their branches use from outside."""
    for node in nodes:
        for graph in subgraphs(node):
            for inner in graph.all_nodes():
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
            for held in (graph, *graph.subgraphs()):
                held.outputs.clear()
    if nodes and nodes[0].graph is not None:
        nodes[0].graph.remove(nodes, safe=True)


def drop_weights(weights: Iterable[ir.Value]) -> int:
    """Remove those weights that nothing uses and that are no input or output."""
    unused = [v for v in weights if not v.uses() and not v.is_graph_input() and not v.is_graph_output()]
    for value in unused:
        assert isinstance(value.graph, ir.Graph)
        del value.graph.initializers[str(value.name)]
    return len(unused)


def drop_functions(model: ir.Model) -> int:
    """Remove the functions that the model does not call."""
    called: set[ir.OperatorIdentifier] = set()
    waiting = [model.graph]
    while waiting:
        calls = {n.op_identifier() for n in waiting.pop().all_nodes()} & set(model.functions)
        waiting += [model.functions[i].graph for i in calls - called]
        called |= calls
    unused = [i for i in model.functions if i not in called]
    for identifier in unused:
        del model.functions[identifier]
    return len(unused)
