"""Carries a graph from opset to opset, one border at a time, and collects what stands in the way.

A rule crosses one border and puts down nodes for the opset on the other side; the next step finds those nodes like
any other. So a rule never has to know the target, and LayerNormalization goes from 17 to 9 by way of the rules for
ReduceMean, Sqrt and the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from torchport.irtools import evaluation, schemas
from torchport.irtools.builder import Builder
from torchport.irtools.function_bodies import expand, has_body
from torchport.irtools.names import FreshNames, name_of
from torchport.irtools.node_reader import Refusal, is_constant_node, is_used
from torchport.irtools.schemas import Schema
from torchport.irtools.traversal import subgraphs
from torchport.opset import rules


@dataclasses.dataclass(frozen=True)
class Blocker:
    """One node that cannot be carried on, why, and the last opset it was good at."""

    op_type: str
    node: str
    reason: str
    opset: int


class Steps:
    """One scope (the main graph with its branches and loop bodies, or a function) on its way to `target`."""

    def __init__(self, scope: ir.Graph, names: FreshNames) -> None:
        self.blockers: list[Blocker] = []
        self._scope = scope
        self._names = names
        self._stuck: set[int] = set()

    def run(self, source: int, target: int) -> None:
        """Crosses every border between `source` and `target`; nodes that cannot are left where they are."""
        way = 1 if target > source else -1
        for here in range(source, target, way):
            for graph in _inner_first(self._scope):
                for node in tuple(graph):
                    self._cross(node, here, here + way)

    def fold(self, opset: int) -> bool:
        """Puts constants where they are certain, and says whether there were any."""
        found = False
        for graph in _inner_first(self._scope):
            for node in tuple(graph):
                array = evaluation.known(node, opset) if _is_default(node) else None
                if array is not None:
                    with Builder(node, opset, self._names.fresh) as builder:
                        _replace(node, builder, [builder.constant(array)])
                    found = True
        return found

    def verify(self, source: int, opset: int) -> None:
        """Notes every node that no operator of `opset` describes: it fitted none at `source` either."""
        for graph in _inner_first(self._scope):
            for node in graph:
                if _is_default(node) and id(node) not in self._stuck:
                    self._verify(node, source, opset)

    def graphs(self) -> Iterator[ir.Graph]:
        """The scope and every body inside it."""
        return _inner_first(self._scope)

    def _verify(self, node: ir.Node, source: int, opset: int) -> None:
        schema = schemas.schema_at(node.op_type, opset)
        try:
            if schema is None:
                raise Refusal(f"no operator of opset {opset}")
            schemas.check(node, schema)
        except Refusal as refusal:
            self._stop(node, str(refusal), source)

    def _cross(self, node: ir.Node, here: int, there: int) -> None:
        if not _is_default(node) or id(node) in self._stuck:
            return
        before = schemas.schema_even_if_deprecated(node.op_type, here)
        after = schemas.schema_even_if_deprecated(node.op_type, there)
        if before is None:
            self._stop(node, f"no operator of opset {here}", here)
        elif after is None or after.since_version != before.since_version:
            self._change(node, before, schemas.schema_at(node.op_type, there), here, there)

    def _change(self, node: ir.Node, before: Schema, after: Schema | None, here: int, there: int) -> None:
        try:
            self._by_rule(node, before, after, here, there)
        except Refusal as refusal:
            if there > here or not self._apart(node, before, here, there):
                self._stop(node, str(refusal), here)

    def _by_rule(self, node: ir.Node, before: Schema, after: Schema | None, here: int, there: int) -> None:
        border, downwards = max(here, there), there < here
        rule = (rules.DOWN if downwards else rules.UP).get((node.op_type, border))
        if rule is not None:
            with Builder(node, there, self._names.fresh) as builder:
                results = rule(node, builder)
                if results is not None:
                    _replace(node, builder, results)
                    return
        if after is None:
            raise Refusal(f"first in opset {border}" if downwards else f"gone in opset {border}")
        if rule is None:
            _refuse_new_meaning(node, before, after, border, downwards)
        _fit(node, before, after)

    def _apart(self, node: ir.Node, schema: Schema, here: int, there: int) -> bool:
        """Puts the operator's own body in its place, and carries that across; False when there is none."""
        if not has_body(schema, here):
            return False
        try:
            with Builder(node, here, self._names.fresh) as builder:
                _replace(node, builder, expand(node, schema, builder))
        except Refusal:
            return False
        for new in tuple(builder.nodes):
            self._cross(new, here, there)
        return True

    def _stop(self, node: ir.Node, reason: str, opset: int) -> None:
        self._stuck.add(id(node))
        self.blockers.append(Blocker(node.op_type, name_of(node), reason, opset))


def _inner_first(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Iterate over a graph and those inside it, inner ones first: a rule may put a node with a body elsewhere."""
    for node in tuple(graph):
        for inner in subgraphs(node):
            yield from _inner_first(inner)
    yield graph


def _refuse_new_meaning(node: ir.Node, before: Schema, after: Schema, border: int, downwards: bool) -> None:
    name = node.op_type
    if schemas.wording(name, before.since_version) == schemas.wording(name, after.since_version):
        return
    if not rules.is_harmless(name, border, downwards=downwards):
        raise Refusal(f"its meaning changed in opset {border}")


def _fit(node: ir.Node, before: Schema, after: Schema) -> None:
    """Drops what is at its default and not known on the other side, then checks that the node fits there."""
    for name in tuple(node.attributes):
        if name not in after.attributes:
            _drop_default(node, name, before)
    for name, attr in after.attributes.items():
        old = before.attributes.get(name)
        if old is not None and name not in node.attributes and _default(old) != _default(attr):
            raise Refusal(f"the default of '{name}' changed in opset {max(before.since_version, after.since_version)}")
    while len(node.outputs) > after.max_output and not is_used(node, len(node.outputs) - 1):
        node.resize_outputs(len(node.outputs) - 1)
    schemas.check_counts(node, after)
    schemas.check_attributes(node, after)
    schemas.check_types(node, after, before=before)


def _drop_default(node: ir.Node, name: str, before: Schema) -> None:
    attr = node.attributes[name]
    known = before.attributes.get(name)
    if known is None or attr.is_ref() or _plain(attr.value) != _default(known):
        raise Refusal(f"attribute '{name}' came in opset {before.since_version}")
    del node.attributes[name]


def _default(attr: object) -> object:
    return _plain(schemas.default_of(attr))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _replace(node: ir.Node, builder: Builder, results: Sequence[ir.Value | None]) -> None:
    """Puts the built nodes in the place of `node`, under the names, types and shapes its outputs had."""
    graph = node.graph
    if graph is None:
        raise Refusal("it stands in no graph")
    pairs = [(old, _own(new, builder)) for old, new in zip(node.outputs, results, strict=False) if new is not None]
    missing = [old for i, old in enumerate(node.outputs) if is_used(node, i) and not any(old is p[0] for p in pairs)]
    if missing:
        raise Refusal(f"its output '{missing[0].name}' cannot be rewritten")
    for old, new in pairs:
        _take_over(old, new)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    _register(graph, builder.initializers)
    graph.insert_before(node, builder.nodes)
    inputs = tuple(node.inputs)
    graph.remove(node, safe=True)
    for value in inputs:
        _drop_unread_constant(value)


def _register(graph: ir.Graph | ir.Function, values: Sequence[ir.Value]) -> None:
    for value in values:
        if not isinstance(graph, ir.Graph):
            raise Refusal("a function has no room for the initializer it needs")
        graph.register_initializer(value)


def _drop_unread_constant(value: ir.Value | None) -> None:
    """Axes that became an attribute leave their Constant behind; nothing else is tidied."""
    if value is None or value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer, graph = value.producer(), value.graph
    if producer is not None and is_constant_node(producer) and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif producer is None and value.is_initializer() and isinstance(graph, ir.Graph):
        graph.initializers.pop(str(value.name))


def _own(value: ir.Value, builder: Builder) -> ir.Value:
    """A value made by the new nodes, so that it can carry the old one's name."""
    if any(value.producer() is new for new in builder.nodes) or any(value is new for new in builder.initializers):
        return value
    return builder.op("Identity", value)


def _take_over(old: ir.Value, new: ir.Value) -> None:
    new.name = old.name
    new.type = old.type if old.type is not None else new.type
    new.shape = old.shape if old.shape is not None else new.shape
    new.metadata_props.update(old.metadata_props)
    new.doc_string = old.doc_string


def _is_default(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx")
