"""A graph as numbers, so that two graphs can be laid beside each other: one of the two sides of a matching.

Weights and `Constant` nodes are leaves: whether a number lies in an initializer or in a node is a matter of taste, and
optimizers move it from one to the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from torchport.irtools.names import name_of
from torchport.irtools.node_reader import is_constant_node
from torchport.irtools.traversal import subgraphs, used_values

OUTER = -1  # the slot of a value that a branch of the node uses from outside


_HOLDERS = (
    ir.AttributeType.TENSORS,
    ir.AttributeType.SPARSE_TENSORS,
    ir.AttributeType.GRAPH,
    ir.AttributeType.GRAPHS,
)

Translate = Callable[[ir.OperatorIdentifier], Hashable]


_ONE = {ir.AttributeType.FLOAT: "FLOAT", ir.AttributeType.INT: "INT64", ir.AttributeType.STRING: "STRING"}
_MANY = {ir.AttributeType.FLOATS: "FLOAT", ir.AttributeType.INTS: "INT64", ir.AttributeType.STRINGS: "STRING"}
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.SPARSE_TENSOR)


class Side:
    """One graph with its nodes numbered in order, and the edges between them both ways.

    Attributes:
        slots: for each node, what each of its inputs reads: ``(node, output)``, a leaf, or None.
        outer: for each node, the same for what its branches use from outside.
        users: for each node, who reads it: ``(user, slot, output)``.
        readers: the same for leaves.
        weights: the leaves that are stored numbers, with their dtypes and shapes.
        given: for each node, the positions it has among the graph's outputs: ``(position, output)``.
    """

    def __init__(
        self, graph: ir.Graph, versions: Mapping[str, int], translate: Translate, numbers: dict[Hashable, int]
    ) -> None:
        """`numbers`: what operators and attributes are called inside, shared by both sides."""
        self.graph = graph
        self.nodes = list(graph)
        self.number = {node: n for n, node in enumerate(self.nodes)}
        self.constant = [is_constant_node(node) for node in self.nodes]
        kinds = [translate(node.op_identifier()) for node in self.nodes]
        self.operator = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
        strict = [(k, len(n.outputs), _attributes_key(n, versions)) for k, n in zip(kinds, self.nodes, strict=True)]
        self.strict = [numbers.setdefault(kind, len(numbers)) for kind in strict]
        self.users: list[list[tuple[int, int, int]]] = [[] for _ in self.nodes]
        self.readers: dict[ir.Value, list[tuple[int, int]]] = {}
        self.slots = [[self._source(v) for v in stripped(node)] for node in self.nodes]
        self.outer = [self._outer(node) for node in self.nodes]
        self._note_users()
        self.weights = {v: kind for v in self.readers if (kind := weight_type(v)) is not None}
        self._fixed: list[bool] = []
        for slots in self.slots:
            self._fixed.append(bool(slots) and all(map(self._is_fixed, slots)))
        self.given: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for position, value in enumerate(graph.outputs):
            source = self._source(value)
            if isinstance(source, tuple):
                self.given[source[0]].append((position, source[1]))

    def _source(self, value: ir.Value | None) -> tuple[int, int] | ir.Value | None:
        producer = None if value is None else value.producer()
        number = None if producer is None else self.number.get(producer)
        if value is None or number is None or self.constant[number]:
            return value
        return number, value.index() or 0

    def _outer(self, node: ir.Node) -> list[tuple[int, int] | ir.Value | None]:
        if not subgraphs(node):
            return []
        own = {v for v in node.inputs if v is not None}
        return [self._source(v) for v in used_values(node) if v not in own]

    def _is_fixed(self, source: tuple[int, int] | ir.Value | None) -> bool:
        if isinstance(source, tuple):
            return source[0] < len(self._fixed) and self._fixed[source[0]]
        return source is None or source in self.weights

    def looks(self, n: int) -> Hashable:
        """What a node is by itself, and which of its inputs are always the same, were they stored or computed."""
        return self.strict[n], tuple(map(self._is_fixed, self.slots[n]))

    def sources(self, n: int) -> list[int]:
        """The nodes one reads from, but for what is always the same."""
        return [s[0] for s in self.slots[n] if isinstance(s, tuple) and not self._fixed[s[0]]]

    def readers_of(self, n: int) -> list[int]:
        return [user for user, _, _ in self.users[n]]

    def _note_users(self) -> None:
        for n, (slots, outer) in enumerate(zip(self.slots, self.outer, strict=True)):
            for slot, source in [*enumerate(slots), *((OUTER, s) for s in outer)]:
                if isinstance(source, tuple):
                    self.users[source[0]].append((n, slot, source[1]))
                elif source is not None:
                    self.readers.setdefault(source, []).append((n, slot))


def called(node: ir.Node) -> str | None:
    """What a node is called; those without a name are told by what they make."""
    return name_of(node) or None


def name_key(side: Side, n: int) -> Hashable:
    return (side.operator[n], side.nodes[n].name) if side.nodes[n].name else None


def output_key(side: Side, n: int) -> Hashable:
    name = next((v.name for v in side.nodes[n].outputs if v.name), None)
    return (side.operator[n], name) if name else None


def stripped(node: ir.Node) -> list[ir.Value | None]:
    """A node's inputs without the empty ones at the end, which mean nothing."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _attributes_key(node: ir.Node, versions: Mapping[str, int]) -> Hashable:
    return tuple(sorted((name, _attribute_key(a)) for name, a in telling_attributes(node, versions).items()))


def _attribute_key(attribute: ir.Attr) -> str:
    """As text, for it is only compared; what is inside graphs and tensors is compared by itself later."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type in _TENSORS:
        return f"{attribute.value.dtype}{attribute.value.shape}"
    if attribute.type in _HOLDERS:
        return str(attribute.type)
    return str(attribute.value)


def telling_attributes(node: ir.Node, versions: Mapping[str, int]) -> dict[str, ir.Attr]:
    """A node's attributes but for those that only say what is so anyway: ``group=1`` of a convolution."""
    if not node.attributes:
        return {}
    domain = "" if node.domain == "ai.onnx" else node.domain
    usual = _defaults(domain, node.op_type, versions.get(domain, versions.get("ai.onnx", 0) if not domain else 0))
    return {
        name: attribute
        for name, attribute in node.attributes.items()
        if name not in usual or attribute.is_ref() or usual[name] != attribute.value
    }


@functools.cache
def _defaults(domain: str, operator: str, version: int) -> dict[str, Any]:
    if not version or not onnx.defs.has(operator, version, domain):
        return {}
    attributes = onnx.defs.get_schema(operator, version, domain).attributes
    given = {name: a.default_value for name, a in attributes.items() if a.default_value.type}
    return {name: ir.serde.deserialize_attribute(default).value for name, default in given.items()}


def weight_type(value: ir.Value) -> tuple[str, tuple[Any, ...]] | None:
    """Dtype and shape of an initializer or a constant; None if the value is neither."""
    producer = value.producer()
    if producer is not None and is_constant_node(producer):
        return _constant_type(producer)
    tensor = value.const_value if value.is_initializer() else None
    if tensor is None:
        return ("?", ()) if value.is_initializer() else None
    return tensor.dtype.name, tuple(tensor.shape)


def _constant_type(node: ir.Node) -> tuple[str, tuple[Any, ...]]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            return "ref", ()
        if attribute.type in _TENSORS:
            return attribute.value.dtype.name, tuple(attribute.value.shape)
        if attribute.type in _ONE:
            return _ONE[attribute.type], ()
        if attribute.type in _MANY:
            return _MANY[attribute.type], (len(attribute.value),)
    return "?", ()
