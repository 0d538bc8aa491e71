"""Which step of an engine computes each node of a graph, from the few nodes that the engine names.

A step computes all that lies between the nodes it is known to compute and the tensors that other steps make. What is
left then was fused into the step that makes its input: an activation into a convolution, say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from torchport.irtools.node_reader import is_constant, is_constant_node


def owners_of(
    graph: ir.Graph,
    anchors: Mapping[ir.Node, int],
    *,
    made: Collection[str] = (),
    there: Collection[ir.Node] = (),
    closed: Collection[int] = (),
) -> dict[ir.Node, int]:
    """Return the position of the step that computes a node, for every node that a step computes.

    Args:
        graph: the nodes; those inside its loops and branches are not looked at.
        anchors: the step of nodes for which it is known.
        made: tensors that some step makes or takes: what makes them is not part of another step.
        there: nodes that the engine runs although they depend on constants only.
        closed: steps that compute nothing before their anchors: they read what another step makes.
    """
    nodes = list(graph)
    folded = _folded(nodes) - set(there)
    owners = dict(anchors)
    for node in reversed(nodes):
        if node in owners and owners[node] not in closed:
            _take_inputs(node, owners, folded, made)
    for node in nodes:
        if node not in owners and node not in folded:
            makers = [value.producer() for value in node.inputs if value is not None]
            positions = [owners[maker] for maker in makers if maker is not None and maker in owners]
            if positions:
                owners[node] = max(positions)
    return owners


def _take_inputs(node: ir.Node, owners: dict[ir.Node, int], folded: set[ir.Node], made: Collection[str]) -> None:
    """Give a node's owner what it computes on the way."""
    pending = [node]
    while pending:
        for value in pending.pop().inputs:
            maker = value.producer() if value is not None else None
            if maker is None or value is None or str(value.name) in made or maker.graph is not node.graph:
                continue
            if maker not in owners and maker not in folded:
                owners[maker] = owners[node]
                pending.append(maker)


def _folded(nodes: list[ir.Node]) -> set[ir.Node]:
    """Return the nodes that depend on constants only."""
    found: set[ir.Node] = set()
    for node in nodes:
        given = [v for v in node.inputs if v is not None]
        if is_constant_node(node) or (given and all(is_constant(v) or v.producer() in found for v in given)):
            found.add(node)
    return found
