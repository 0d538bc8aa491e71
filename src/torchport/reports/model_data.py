"""A model as the viewer reads it: one JSON object, its tables in columns so that it stays small.

Names, attributes and texts of the model stand in it as they are: the page shows them as text and never as HTML.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from torchport.inspection.cost import ASSUMED, UnknownShapeError, bytes_moved, multiply_adds
from torchport.inspection.look import attribute_text, source_line
from torchport.irtools.metadata import EDIT, origin_of, utf8
from torchport.irtools.names import name_of
from torchport.irtools.node_reader import constant_tensor, is_constant_node
from torchport.irtools.polynomials import Size, number
from torchport.irtools.shapes import Shapes
from torchport.irtools.traversal import attribute_graphs, graphs
from torchport.irtools.types import dtype_name, operator_name, type_text
from torchport.reports.module_tree import module_tree
from torchport.reports.operator_docs import operator_docs
from torchport.reports.weight_values import WeightReader, place_of
from torchport.terminal import shape_text, shortened

_LONGEST_NAME = 2000  # letters of a name: a hostile one may have millions
_LONGEST_VALUE = 500
_MOST_LINES = 5000  # Python lines whose text is looked up


class Table:
    """Texts by number: each is stored once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


class ModelData:
    """The graphs, nodes, values and weights of a model; nodes and values are numbered over all graphs.

    Constant nodes are no nodes here: what they hold is a weight of the nodes that read it.

    Attributes:
        nodes: the nodes, by number.
    """

    def __init__(self, model: ir.Model, *, weight_seconds: float = 3.0) -> None:
        """Args: the model, which is left as it is, and how long its weights may be read for their statistics."""
        self._model = model
        self._reader = WeightReader(weight_seconds)
        self._shapes = Shapes(model)
        self._operators, self._sources, self._torch, self._types = Table(), Table(), Table(), Table()
        self._graph_numbers = {id(graph): n for n, graph in enumerate(graphs(model))}
        self._function_names = {id(one.graph): one.name for one in model.functions.values()}
        self._value_numbers: dict[int, int] = {}
        self._values: dict[str, list[Any]] = {"name": [], "type": []}
        self._weights: dict[int, dict[str, Any]] = {}
        self.nodes: list[ir.Node] = []
        self._rows: list[dict[str, Any]] = []
        self._graphs = [self._graph(graph) for graph in graphs(model)]

    def json_form(self) -> dict[str, Any]:
        """Return the object that the viewer reads."""
        tree, modules = module_tree(self.nodes)
        lines = ((source, source_line(source)) for source in self._sources.texts[:_MOST_LINES])
        return {
            "assumed": ASSUMED,
            "graphs": self._graphs,
            "functions": self._functions(),
            "modules": {"source": tree.source, "parents": tree.parents, "labels": tree.labels, "paths": tree.paths},
            "nodes": {name: [row[name] for row in self._rows] for name in _COLUMNS} | {"module": modules},
            "values": self._values,
            "weights": self._weights,
            "operators": self._operators.texts,
            "sources": self._sources.texts,
            "torch": self._torch.texts,
            "types": self._types.texts,
            "lines": {source: line for source, line in lines if line},
            "docs": operator_docs(self.nodes, self._model.opset_imports),
        }

    def _functions(self) -> dict[str, int]:
        """Return the graph of each local function, by the operator name that calls it."""
        found: dict[str, int] = {}
        for (domain, name, _), function in self._model.functions.items():
            found[name if domain in ("", "ai.onnx") else f"{domain}::{name}"] = self._graph_numbers[id(function.graph)]
        return found

    def _graph(self, graph: ir.Graph) -> dict[str, Any]:
        for value in graph.initializers.values():
            if value.const_value is not None:
                self._weight(value, value.const_value)
        shown = [node for node in graph if not self._is_weight(node)]
        first = len(self.nodes)
        self.nodes += shown
        self._rows += [self._row(node) for node in shown]
        return {
            "name": _name(graph.name or self._function_names.get(id(graph), "")),
            "inputs": [self._value(v) for v in graph.inputs if v.name not in graph.initializers],
            "outputs": [self._value(v) for v in graph.outputs],
            "first": first,
            "count": len(shown),
        }

    def _is_weight(self, node: ir.Node) -> bool:
        """Store what a Constant node holds as a weight; one that nobody reads or that is an output stays a node."""
        if not is_constant_node(node) or any(v.is_graph_output() or not v.uses() for v in node.outputs):
            return False
        tensor = constant_tensor(node.outputs[0])
        if tensor is None:
            return False
        self._weight(node.outputs[0], tensor)
        return True

    def _row(self, node: ir.Node) -> dict[str, Any]:
        origin = origin_of(node)
        held = [[_name(key), self._graph_numbers[id(graph)]] for key, graph in _bodies(node)]
        return {
            "name": _name(name_of(node)),
            "operator": self._operators.number(_name(operator_name(node))),
            "source": self._sources.number(_name(origin.source)),
            "torch": self._torch.number(_name(origin.operator)),
            "inputs": [-1 if v is None else self._value(v) for v in node.inputs],
            "outputs": [self._value(v) for v in node.outputs],
            "attributes": {_name(key): _attribute(given) for key, given in node.attributes.items()} or 0,
            "bodies": held or 0,
            "work": self._work(node),
            "moved": self._moved(node),
            "edit": _name(node.metadata_props.get(EDIT, "")) or 0,
        }

    def _work(self, node: ir.Node) -> int | None:
        """Return the multiply-adds, dynamic dimensions taken as `ASSUMED`; None where a shape is not known."""
        try:
            return number(multiply_adds(node, self._shapes), ASSUMED)
        except UnknownShapeError:
            return None

    def _moved(self, node: ir.Node) -> int | None:
        size: Size | None = bytes_moved([node], self._shapes)
        return None if size is None else number(size, ASSUMED)

    def _value(self, value: ir.Value) -> int:
        key = id(value)
        if key not in self._value_numbers:
            self._value_numbers[key] = len(self._values["name"])
            self._values["name"].append(_name(value.name))
            self._values["type"].append(self._types.number(_name(self._type(value))))
        return self._value_numbers[key]

    def _type(self, value: ir.Value) -> str:
        if value.type is not None and value.shape is not None:
            stated = [d if isinstance(d, int) else d.value for d in value.shape]
            return shape_text(type_text(value.type), stated)
        kind = type_text(value.type) if value.type is not None else dtype_name(self._shapes.dtype(value))
        return shape_text(kind, self._shapes.of(value))

    def _weight(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        place = self._value(value)
        kind = shape_text(dtype_name(tensor.dtype), tuple(tensor.shape))
        self._values["type"][place] = self._types.number(_name(kind))
        self._weights[place] = {"elements": tensor.size, **place_of(tensor), **self._reader.read(tensor)}


_COLUMNS = (
    *("name", "operator", "source", "torch", "inputs", "outputs", "attributes", "bodies", "work", "moved", "edit"),
)


def _bodies(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    return [(key, graph) for key, given in node.attributes.items() for graph in attribute_graphs(given)]


def _attribute(given: ir.Attr) -> str:
    return shortened(utf8(attribute_text(given)), _LONGEST_VALUE)


def _name(text: object) -> str:
    """Return a text that JSON can hold, and that does not fill the page."""
    whole = utf8("" if text is None else text)
    return shortened(whole.encode("utf-8", "replace").decode("utf-8"), _LONGEST_NAME)
