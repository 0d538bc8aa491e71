"""Names in a model: look values and nodes up with a "did you mean", make new names, rename safely."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.irtools.traversal import all_nodes, all_values, graphs, own_values, subgraphs
from torchport.irtools.types import operator_name


def name_of(node: ir.Node) -> str:
    """Return a node's name, or for one without a name that of its first output: a node can be found by both."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def where(node: ir.Node) -> str:
    """Return how an error names a node."""
    name = f"'{name_of(node)}'"
    return f"node {name} ({operator_name(node)})" if node.name else f"the {operator_name(node)} that makes {name}"


def check_owned(model: ir.Model, *given: ir.Node | ir.Value) -> None:
    """Check that nodes and values are of a model, in its graph, a branch, a body or a function.

    Raises:
        InputError: one is of another model, or of none.
    """
    nodes = set(all_nodes(model)) if any(isinstance(one, ir.Node) for one in given) else set()
    values = set(all_values(model)) if any(isinstance(one, ir.Value) for one in given) else set()
    for one in given:
        if one not in nodes and one not in values:
            title = where(one) if isinstance(one, ir.Node) else f"tensor '{one.name}'"
            raise InputError(
                f"{title} is not of this model",
                next_step="give one of this model; what an edit has taken out is of no model",
            )


def unknown(name: str, what: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not there, with those close to it."""
    next_step = did_you_mean(name, known, "`torchport inspect` lists what there is")
    return InputError(f"there is no {what} '{name}' in the model", next_step=next_step)


def own_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The same data under another name. onnx-ir keeps the name in the tensor, which may be another model's too."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=tensor.base_dir,
        )
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape, name=name)  # type: ignore[arg-type]
    return ir.LazyTensor(
        lambda: tensor,
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def rename(value: ir.Value, name: str) -> None:
    """Give a value another name, and its tensor, if any, one of its own."""
    if value.name == name:
        return
    if value.const_value is not None and value.producer() is None:
        value.const_value = own_tensor(value.const_value, name)
    ir.convenience.rename_values(value, name)


class FreshNames:
    """Hands out names that no value and no node of the models or graphs has yet, each once."""

    def __init__(self, *within: ir.Model | ir.Graph) -> None:
        named = (one for part in within for graph in graphs(part) for one in (*own_values(graph), *graph))
        self._taken = {str(one.name) for one in named}

    def fresh(self, wish: str) -> str:
        """Return the name, with a number behind it if it is taken."""
        name, count = wish, 0
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name


class Names:
    """The values and nodes of a model's main graph by name."""

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self.graph, self._model = graph, model
        self.values: dict[str, ir.Value] = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values())}
        self.nodes: dict[str, ir.Node] = {}
        for node in graph:
            self.nodes.setdefault(name_of(node), node)
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
                f"'{name}' is inside the body of {where(inside)}, which runs as a whole",
                next_step=f"name a tensor of the main graph: what that node takes or gives, such as {_listed(inside)}",
            )
        return unknown(name, what, known)


def _holder(model: ir.Model, name: str) -> ir.Node | None:
    """The node of the main graph in whose branches a value or node of that name is."""
    for node in model.graph:
        for graph in (inner for held in subgraphs(node) for inner in graphs(held)):
            if any(name == inner.name for inner in (*graph, *own_values(graph))):
                return node
    return None


def _listed(node: ir.Node) -> str:
    return ", ".join(f"'{v.name}'" for v in (*node.outputs, *node.inputs) if v is not None and v.name)
