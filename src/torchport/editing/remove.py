"""Take nodes out of a graph."""

from __future__ import annotations

import onnx_ir as ir

from torchport.editing.cleanup import drop_functions, drop_weights, take_out
from torchport.editing.retype import infer_again
from torchport.editing.selection import Nodes, chosen_nodes, forget_unused_domains, title
from torchport.editing.transaction import attempt, in_place, unproves
from torchport.errors import InputError
from torchport.irtools.names import name_of, where
from torchport.irtools.traversal import graphs, subgraphs, used_values
from torchport.irtools.types import plain


@in_place
@unproves
def bypass(model: ir.Model, node: Nodes) -> int:
    """Take nodes out, by connecting what they get to whoever used what they give.

    What only they needed beside that (weights, say) goes as well.

    Args:
        model: changed in place.
        node: a node or its name, an operator (``devtech::FooOp``, ``Identity``): all of its nodes, or a list of these.

    Returns:
        How many nodes were taken out.

    Raises:
        InputError: there is none, it has no input of its output's type, or what comes after it cannot do with the
            shape it gets; nothing is changed then.

    Example:
        >>> model = tp.graph.load("model_foo.onnx")
        >>> tp.graph.bypass(model, "devtech::FooOp")
        >>> tp.graph.save(model, "removed.onnx")
    """
    found = chosen_nodes(model, node)
    infer_again(model)
    for one in found:
        _check_can_be_bypassed(one)
    if any(_changes_shape(one) for one in found):  # what comes after may need the shape that is no more
        attempt(model, lambda: _bypass_all(model, found), f"{title(node)} cannot be bypassed")
    else:
        _bypass_all(model, found)
    return len(found)


def _check_can_be_bypassed(node: ir.Node) -> None:
    inputs = [v for v in node.inputs if v is not None]
    further = [v for v in node.outputs[1:] if v.uses() or v.is_graph_output()]
    if not inputs or further:
        why = f"its output '{further[0].name}' is used too" if further else "it has no input to put in its place"
        raise InputError(f"{where(node)} cannot be bypassed: {why}", next_step="replace it instead")
    before, after = inputs[0], node.outputs[0]
    if before.dtype is not None and after.dtype is not None and before.dtype != after.dtype:
        raise InputError(
            f"{where(node)} cannot be bypassed: it takes {plain(before.dtype)} and gives {plain(after.dtype)}",
            next_step="bypass a node whose first input and output are of one type",
        )


def _changes_shape(node: ir.Node) -> bool:
    before, after = next(v for v in node.inputs if v is not None), node.outputs[0]
    return before.shape != after.shape


def _bypass_all(model: ir.Model, nodes: list[ir.Node]) -> None:
    later: dict[ir.Node, None] = {}
    for node in nodes:
        if node.graph is None:
            continue  # only another one needed it
        if _changes_shape(node):
            later.update(dict.fromkeys(use.node for use in node.outputs[0].uses()))
        _bypass(node)
    drop_functions(model)
    forget_unused_domains(model)
    infer_again(model, [node for node in later if node.graph is not None])


def _bypass(node: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    before, after = next(v for v in node.inputs if v is not None), node.outputs[0]
    needed = [v for v in used_values(node) if v is not before]
    if before.type is None:
        before.type = after.type
    if after.is_graph_output():
        if before.shape is None:  # an output must state one
            before.shape = after.shape
        before = _keep_output(graph, node, before, after)
    after.replace_all_uses_with(before)
    take_out([node])
    _drop_needed(needed)


def _keep_output(graph: ir.Graph | ir.Function, node: ir.Node, before: ir.Value, after: ir.Value) -> ir.Value:
    """The graph's output keeps its name: the producer's value takes it, or an Identity where that has one to keep."""
    name = after.name
    producer = before.producer()
    if producer is None or before.is_graph_output() or producer.graph is not graph:
        copy = ir.node("Identity", [before], name=f"{name_of(node)}_bypassed")
        graph.insert_before(node, copy)
        copy.outputs[0].type, copy.outputs[0].shape = before.type, before.shape
        before = copy.outputs[0]
    graph.outputs[:] = [before if v is after else v for v in graph.outputs]
    after.name = None
    before.name = name
    return before


@in_place
@unproves
def remove(model: ir.Model, node: Nodes) -> int:
    """Take nodes out, with what only they needed: nodes, weights and functions.

    An output of the model that they made is one no more. Inputs stay, also those that nothing uses now, which
    `torchport lint` lists.

    Args:
        model: changed in place.
        node: a node or its name, an operator (all of its nodes), names with ``*``, or a list of these.

    Returns:
        How many nodes were taken out.

    Raises:
        InputError: there is none, others need what it gives, or the model would be left without outputs.

    Example:
        >>> tp.graph.remove(model, "auxiliary_head.*")
    """
    chosen = chosen_nodes(model, node)
    inside = {inner for one in chosen for inner in _inside(one)}
    found = [one for one in chosen if one not in inside]
    _check_not_needed(found)
    _check_outputs(model, found)
    gone = set(found)
    model.graph.outputs[:] = [v for v in model.graph.outputs if v.producer() not in gone]
    count = 0
    for graph in graphs(model):
        nodes = [n for n in graph if n in gone]
        needed = [v for n in nodes for v in used_values(n)]
        take_out(nodes)
        count += len(nodes) + _drop_needed(needed)
    drop_functions(model)
    forget_unused_domains(model)
    return count


def _inside(node: ir.Node) -> list[ir.Node]:
    return [inner for graph in subgraphs(node) for inner in graph.all_nodes()]


def _check_not_needed(nodes: list[ir.Node]) -> None:
    gone = {one for node in nodes for one in (node, *_inside(node))}
    for node in nodes:
        users = [use.node for v in node.outputs for use in v.uses() if use.node not in gone]
        if users:
            listed = ", ".join(where(user) for user in list(dict.fromkeys(users))[:5])
            raise InputError(
                f"{where(node)} cannot be removed: others need what it gives",
                where=listed,
                next_step="bypass it, or remove these too",
            )


def _check_outputs(model: ir.Model, nodes: list[ir.Node]) -> None:
    mine = [(n, v) for n in nodes for v in n.outputs if v.is_graph_output()]
    for node, value in mine:
        if value not in set(model.graph.outputs):
            raise InputError(
                f"{where(node)} cannot be removed: it gives '{value.name}', the result of a branch, body or function",
                next_step="bypass it, or remove the node that has the branch",
            )
    if mine and {v for _, v in mine} >= set(model.graph.outputs):
        raise InputError(
            f"{where(mine[0][0])} cannot be removed: the model would have no outputs",
            next_step="bypass it, or cut the model at another tensor: `torchport cut`",
        )


def _drop_needed(values: list[ir.Value]) -> int:
    """Take out what made some values, if nobody needs them any more, and what only that needed; how many nodes."""
    waiting, count = list(values), 0
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        if value.is_initializer():
            drop_weights([value])
        elif producer is not None and producer.graph is not None and not _is_needed(producer):
            waiting += used_values(producer)
            take_out([producer])
            count += 1
    return count


def _is_needed(node: ir.Node) -> bool:
    return any(v.uses() or v.is_graph_output() for v in node.outputs)
