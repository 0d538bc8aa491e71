"""Parts of a graph that are alike, and the function that can stand for all of them."""

from __future__ import annotations

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.nodes_text import Fragment
from torchport.graph.edits.patterns.text import matches
from torchport.irtools import node_reader
from torchport.irtools.names import where
from torchport.irtools.traversal import Match, scoped_nodes, subgraphs, used_by, values_in

_FEW = 64  # integers of a constant that goes into the function: shapes and axes, which inference wants to see


def alike(
    model: ir.Model, groups: dict[str, list[ir.Node]], domain: str, kind: str
) -> tuple[Match, ir.Function, list[Match]]:
    """A place, the function of it, and the other places that are the same; among these one in every group.

    The smallest group is tried first: what layers share, such as the sizes of their input, an exporter leaves in the
    first of them, where it stays outside of the function.
    """
    refusals: list[InputError] = []
    for title in sorted(groups, key=lambda one: len(groups[one])):
        try:
            part = _part(model, groups[title])
            function = _function(part, domain, kind)
            blocked: list[str] = []
            alone = any(subgraphs(n) for n in part.nodes)
            pattern = Fragment(function.graph, title)
            others = [] if alone else matches(model, pattern, blocked, exact=True, without=part.nodes)
            _check_all_found(groups, title, others, blocked)
            return part, function, others
        except InputError as error:
            refusals.append(error)
    raise refusals[0]


def _check_all_found(groups: dict[str, list[ir.Node]], own: str, others: list[Match], blocked: list[str]) -> None:
    for title, nodes in groups.items():
        if title != own and not any(set(match.nodes) <= set(nodes) for match in others):
            raise InputError(
                f"the modules {own} and {title} are not built alike{f': {blocked[0]}' if blocked else ''}",
                where=f"{own} has {len(groups[own])} nodes, {title} has {len(nodes)}",
                next_step="make a function of each kind by itself",
            )


def _part(model: ir.Model, group: list[ir.Node]) -> Match:
    """What goes into some nodes and comes out of them, if nothing leads from them back in."""
    inside = set(group)
    scope = next(scope for scope, n in scoped_nodes(model) if n is group[0])
    entering = [v for v in dict.fromkeys(v for n in group for v in used_by(n)) if v.producer() not in inside]
    _check_closed(group, entering)
    _check_no_parameters(group)
    holder = {inner: n for n in group for g in subgraphs(n) for inner in ir.traversal.RecursiveGraphIterator(g)}
    leaving = [v for n in group for v in n.outputs if _leaves(v, inside | set(holder))]
    if not leaving:
        raise InputError("nothing uses what these nodes give", where=where(group[-1]), next_step="remove them instead")
    inputs: dict[str, ir.Value | None] = {str(v.name): v for v in entering}
    return Match(tuple(group), inputs, tuple(leaving), {}, scope)


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _check_closed(group: list[ir.Node], entering: list[ir.Value]) -> None:
    inside = set(group)
    came: dict[ir.Value, ir.Value | None] = dict.fromkeys(entering)
    waiting = list(entering)
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        if producer in inside:
            raise _leads_back(value, came)
        for further in used_by(producer) if producer is not None else []:
            if further not in came:
                came[further] = value
                waiting.append(further)


def _leads_back(value: ir.Value, came: dict[ir.Value, ir.Value | None]) -> InputError:
    way, step = [], came[value]
    while step is not None:
        way.append(f"'{step.name}'")
        step = came[step]
    return InputError(
        f"the nodes cannot be one step: '{value.name}' leaves them, and what is made of it comes back in",
        where=" → ".join([f"'{value.name}'", *way]),
        next_step="take the nodes on that way in too, or fewer nodes",
    )


def _check_no_parameters(group: list[ir.Node]) -> None:
    for node in ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=group)):
        if any(a.is_ref() for a in node.attributes.values()):
            raise InputError(
                f"{where(node)} has an attribute that is a parameter of the function it is in",
                next_step="choose nodes without such attributes",
            )


def _function(part: Match, domain: str, name: str) -> ir.Function:
    """The function, its body a copy of the nodes, without types: it may be called with others."""
    used = ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=part.nodes))
    domains = {"" if n.domain == "ai.onnx" else n.domain for n in used} | {""}
    imports = {d: v for d, v in part.scope.opset_imports.items() if ("" if d == "ai.onnx" else d) in domains}
    entering = [v for v in part.inputs.values() if v is not None]
    graph = ir.GraphView(entering, part.outputs, nodes=part.nodes, opset_imports=imports, name=name).clone()
    for value, own in zip(entering, list(graph.inputs), strict=True):
        own.const_value = None
        if _is_few_integers(value):
            _put_inside(graph, own, value)
    for value in values_in(graph):
        if not value.is_initializer():
            value.type = value.shape = None
    return ir.Function(domain, name, "", graph=graph, attributes=[])


def _is_few_integers(value: ir.Value) -> bool:
    producer, tensor = value.producer(), value.const_value
    if producer is None and (tensor is None or tensor.size > _FEW or tensor.dtype.is_floating_point()):
        return False
    array = node_reader.constant(value)
    return array is not None and array.size <= _FEW and array.dtype.kind in "iu"


def _put_inside(graph: ir.Graph, own: ir.Value, value: ir.Value) -> None:
    array = node_reader.constant(value)
    assert array is not None
    node = ir.node("Constant", [], attributes={"value": ir.tensor(array)})
    node.name = node.outputs[0].name = own.name
    own.replace_all_uses_with(node.outputs[0])
    graph.inputs.remove(own)
    graph.insert_before(graph[0], node)
