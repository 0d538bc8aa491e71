"""Take nodes out of a graph."""

from __future__ import annotations

import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph.edits.choosing import chosen_nodes, forget_unused_domains


def bypass(model: ir.Model, node: str) -> int:
    """Take nodes out, by connecting what they get to whoever used what they give.

    Args:
        model: changed in place.
        node: a node's name, or an operator (``devtech::FooOp``, ``Identity``): all of its nodes.

    Returns:
        How many nodes were taken out.

    Example:
        >>> model = tp.graph.load("model_foo.onnx")
        >>> tp.graph.bypass(model, "devtech::FooOp")
        >>> tp.graph.save(model, "removed.onnx")
    """
    found = chosen_nodes(model, node)
    for one in found:
        _check_can_be_bypassed(one)
    for one in found:
        _bypass(one)
    forget_unused_domains(model)
    return len(found)


def _check_can_be_bypassed(node: ir.Node) -> None:
    inputs = [v for v in node.inputs if v is not None]
    further = [v for v in node.outputs[1:] if v.uses() or v.is_graph_output()]
    if not inputs or further:
        why = f"its output '{further[0].name}' is used too" if further else "it has no input to put in its place"
        raise InputError(f"node '{node.name}' ({node.op_type}) cannot be bypassed: {why}")
    before, after = inputs[0], node.outputs[0]
    if before.dtype is not None and after.dtype is not None and before.dtype != after.dtype:
        raise InputError(
            f"node '{node.name}' ({node.op_type}) cannot be bypassed: it takes {before.dtype} and gives {after.dtype}",
            next_step="bypass a node whose first input and output are of one type",
        )


def _bypass(node: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    before, after = next(v for v in node.inputs if v is not None), node.outputs[0]
    if before.type is None:
        before.type = after.type
    if before.shape is None:
        before.shape = after.shape
    if after.is_graph_output():
        before = _keep_output(graph, node, before, after)
    ir.convenience.replace_all_uses_with(after, before)
    graph.remove(node, safe=True)


def _keep_output(graph: ir.Graph | ir.Function, node: ir.Node, before: ir.Value, after: ir.Value) -> ir.Value:
    """The graph's output keeps its name: the producer's value takes it, or an Identity where that has one to keep."""
    name = after.name
    producer = before.producer()
    if producer is None or before.is_graph_output() or producer.graph is not graph:
        copy = ir.node("Identity", [before], name=f"{node.name}_bypassed")
        graph.insert_before(node, copy)
        copy.outputs[0].type, copy.outputs[0].shape = after.type, after.shape
        before = copy.outputs[0]
    graph.outputs[:] = [before if v is after else v for v in graph.outputs]
    after.name = None
    before.name = name
    return before
