"""Fills in types and shapes a model does not state, with onnx's inference.

onnx-ir has a pass for this, which takes a sequence for a tensor of its elements; so what is found is merged here.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

_SMALL = 1024  # bytes of an initializer worth showing to inference, as it may be a shape


def infer_missing(model: ir.Model) -> None:
    """Sets every type and shape that is missing and can be inferred; what is stated stays as it is."""
    values = [value for graph in model.graphs() for node in graph for value in node.outputs]
    if all(value.type is not None and value.shape is not None for value in values):
        return
    try:
        inferred = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True)
    except onnx.shape_inference.InferenceError:
        return  # what needs a type then refuses with that reason
    found = ir.from_proto(inferred)
    for graph, typed in zip(model.graphs(), found.graphs(), strict=True):
        known = ir.convenience.create_value_mapping(typed)
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if name in known:
                value.type = value.type if value.type is not None else known[name].type
                value.shape = value.shape if value.shape is not None else known[name].shape


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """The graph alone: large initializers become inputs, so a model of any size fits into one message."""
    bare = model.clone()
    for name, value in tuple(bare.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes > _SMALL:
            bare.graph.initializers.pop(name)
            if not value.is_graph_input():
                bare.graph.inputs.append(value)
    return ir.to_proto(bare)
