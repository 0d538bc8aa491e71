"""Hand a model's weights to an engine beside its graph, without copying them."""

from __future__ import annotations

import onnx_ir as ir

from torchport.irtools.serialization import settled
from torchport.irtools.traversal import bodies
from torchport.tensors import Array

_SMALL = 1 << 12  # weights below this stay in the graph: shapes and axes, which engines want to know beforehand


def weights_as_inputs(model: ir.Model) -> tuple[bytes, dict[str, Array]]:
    """The model's bytes with its weights as inputs, and the weights by name. The model itself is left as it was."""
    graph = model.graph
    inputs = list(graph.inputs)
    moved = [v for v in graph.initializers.values() if v.const_value is not None and v.const_value.nbytes >= _SMALL]
    tensors = [v.const_value for v in moved]
    order = list(graph.initializers.values())
    kept = {v: v.const_value for v in _initializers(model) if v not in moved and v.const_value is not None}
    try:
        for value, stored in kept.items():
            value.const_value = settled(stored)  # an engine that gets bytes has no folder to find a data file in
        for value in moved:
            del graph.initializers[str(value.name)]
            value.const_value = None
            if value not in inputs:
                graph.inputs.append(value)
        graph_bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    finally:
        for value, stored in kept.items():
            value.const_value = stored
        graph.inputs[:] = inputs
        graph.initializers.clear()
        for value, tensor in zip(moved, tensors, strict=True):
            value.const_value = tensor
        for value in order:
            graph.initializers.add(value)
    arrays = {str(v.name): t.numpy() for v, t in zip(moved, tensors, strict=True) if t is not None}
    return graph_bytes, arrays


def _initializers(model: ir.Model) -> list[ir.Value]:
    return [v for body in bodies(model) for g in (body, *body.subgraphs()) for v in g.initializers.values()]
