"""Have another program simplify the model, and take what it gives if that has fewer nodes.

Weights that are as they were stay the tensors they were, and nodes get the origins of those that made the same values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from torchport.editing.transaction import take_over
from torchport.files.onnx_files import load
from torchport.irtools.serialization import settled, to_proto, weights
from torchport.irtools.traversal import all_nodes
from torchport.optimization.passes.graph_pass import ORIGIN, Work
from torchport.process import silence, silence_native

_MOST_BYTES = 1 << 30  # of weights: a simplifier copies them several times


def simplify(model: ir.Model, work: Work, program: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """Change a model to what a program makes of it."""
    if sum(tensor.nbytes for tensor in weights(model)) > _MOST_BYTES:
        return
    with silence(), silence_native():
        simplified = load(program(to_proto(model, place=settled, nested=settled)))
    if sum(1 for _ in all_nodes(simplified)) >= sum(1 for _ in all_nodes(model)):
        return
    work.changes += 1
    _keep_weights(model, simplified)
    _keep_origins(model, simplified)
    take_over(model, simplified)


def _keep_weights(model: ir.Model, simplified: ir.Model) -> None:
    known = model.graph.initializers
    for name, value in simplified.graph.initializers.items():
        before = known[name].const_value if name in known else None
        if before is None or value.const_value is None or before.dtype != value.const_value.dtype:
            continue
        if before.dtype != ir.DataType.STRING and np.array_equal(before.numpy(), value.const_value.numpy()):
            value.const_value = before


def _keep_origins(model: ir.Model, simplified: ir.Model) -> None:
    by_value = {value.name: node for node in all_nodes(model) for value in node.outputs}
    by_name = {node.name: node for node in all_nodes(model) if node.name}
    for node in all_nodes(simplified):
        found = next((by_value[v.name] for v in node.outputs if v.name in by_value), None)
        found = found or by_name.get(str(node.name))
        origin = {} if found is None else found.metadata_props
        for key in ORIGIN:
            if key in origin:
                node.metadata_props.setdefault(key, origin[key])
