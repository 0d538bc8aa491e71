"""Which outputs of a model depend on random numbers that the model draws itself: two runs give different ones."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools.node_reader import constant, input_at
from torchport.irtools.traversal import inlined, subgraphs, used_values

_DRAWING = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def draws(node: ir.Node) -> bool:
    """Check that a node draws random numbers, itself or in its branches."""
    if any(draws(inner) for graph in subgraphs(node) for inner in graph):
        return True
    if node.domain not in ("", "ai.onnx"):
        return False
    return node.op_type in _DRAWING or (node.op_type == "Dropout" and _trains(node))


def _trains(node: ir.Node) -> bool:
    """Check that a Dropout leaves numbers out, or may do so; before opset 12 it has no input that says it."""
    mode, ratio = input_at(node, 2), input_at(node, 1)
    if mode is None:
        return False
    switch, part = constant(mode), constant(ratio)
    return (switch is None or bool(switch)) and (part is None or bool(part))


def random_outputs(model: ir.Model) -> dict[str, ir.Node]:
    """Return the outputs that depend on random numbers, by name, each with a node that draws them."""
    graph = inlined(model).graph
    drawn: dict[ir.Value, ir.Node] = {}
    for node in graph:
        source = node if draws(node) else next((drawn[v] for v in used_values(node) if v in drawn), None)
        if source is not None:
            drawn.update(dict.fromkeys(node.outputs, source))
    return {str(value.name): drawn[value] for value in graph.outputs if value in drawn}
