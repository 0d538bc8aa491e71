"""New nodes that stand in no graph yet, and how their values take the place of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from torchport.errors import InputError
from torchport.irtools.names import FreshNames, where
from torchport.irtools.traversal import Match


@dataclasses.dataclass(frozen=True)
class Graft:
    """New nodes that stand in no graph yet, with what comes out of them and the weights they bring."""

    nodes: list[ir.Node]
    outputs: list[ir.Value]
    initializers: list[ir.Value]


def is_used(value: ir.Value) -> bool:
    """Whether a node, or whoever runs the graph, gets the value."""
    return bool(value.uses()) or value.is_graph_output()


def loose(graft: Graft) -> list[ir.Value]:
    """Constants that were made for an input of a new node, and stand nowhere yet."""
    used = [v for n in graft.nodes for v in n.inputs if v is not None]
    return [v for v in used if v.producer() is None and v.graph is None and v.const_value is not None]


def bind(graph: ir.Graph, attributes: Mapping[str, ir.Attr | None]) -> None:
    """Put attributes in the place of the variables for them; one that was left out stays left out."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for name, attribute in list(node.attributes.items()):
            if not attribute.is_ref():
                continue
            bound = attributes.get(str(attribute.ref_attr_name))
            if bound is None:
                del node.attributes[name]
            elif bound.is_ref():
                node.attributes[name] = ir.RefAttr(name, str(bound.ref_attr_name), bound.type)
            else:
                node.attributes[name] = ir.Attr(name, bound.type, bound.value)


def detached(graph: ir.Graph, inputs: Sequence[ir.Value | None]) -> Graft:
    """Take a graph apart: its nodes, connected to other inputs, and its weights."""
    nodes, outputs, formals = list(graph), list(graph.outputs), list(graph.inputs)
    graph.outputs.clear()
    graph.remove(nodes)
    initializers = [graph.initializers.pop(name) for name in list(graph.initializers)]
    graph.inputs.clear()
    for formal, actual in zip(formals, inputs, strict=True):
        if actual is not None:
            formal.replace_all_uses_with(actual)
            outputs = [actual if o is formal else o for o in outputs]
            continue
        for node, index in list(formal.uses()):
            node.replace_input_with(index, None)
    return Graft(nodes, outputs, initializers)


def paired(match: Match, graft: Graft) -> list[tuple[ir.Value, ir.Value]]:
    """Each output that goes, with the one that comes; as many as are used must come."""
    old, new = list(match.outputs), graft.outputs
    missing = [v for v in old[len(new) :] if is_used(v)]
    surplus = len(new) > len(old) and len(match.nodes) > 1
    if missing or surplus:
        raise InputError(
            f"{len(old)} outputs are replaced, and {len(new)} are there for them",
            where=f"'{missing[0].name}' is used" if missing else where(match.nodes[-1]),
            next_step="give as many outputs as there are",
        )
    return list(zip(old, new, strict=False))


def take_place(
    graph: ir.Graph, at: ir.Node, old: ir.Value, new: ir.Value, made: set[ir.Node], names: FreshNames
) -> ir.Value:
    """Let `new` be what `old` was to everybody; its name too, if it is of the new nodes."""
    own = new.producer() in made and new.name is not None and not new.is_graph_output()
    if not own and old.is_graph_output():
        node = ir.node("Identity", [new], name=names.fresh(f"{old.name}_identity"))
        node.metadata_props.update(at.metadata_props)
        graph.insert_before(at, node)
        new, own = node.outputs[0], True
    if own:
        name, old.name = old.name, None
        new.name = name or ("" if not new.uses() else new.name)  # an output that was left out stays left out
        new.type = old.type if old.type is not None else new.type
        new.shape = _merged(old.shape, new.shape)
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        made.discard(new.producer())  # a second output of the same value needs its own name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return new


def _merged(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """What is known of either; a name that was stated is not lost."""
    if old is None or new is None:
        return old if old is not None else new
    return ir.Shape(
        [b if isinstance(a, ir.SymbolicDim) and a.value is None else a for a, b in zip(old, new, strict=True)]
    )


def drop_unread(values: Sequence[ir.Value]) -> None:
    """Take out constants and weights that the edit left nobody to read."""
    for value in dict.fromkeys(values):
        if is_used(value) or value.is_graph_input():
            continue
        producer, graph = value.producer(), value.graph
        if producer is not None and producer.op_type == "Constant" and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
        elif producer is None and value.is_initializer() and graph is not None:
            graph.initializers.pop(str(value.name))
