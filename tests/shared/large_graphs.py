"""Models of many small nodes, as a transformer has them: for what must stay quick in large graphs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from torchport.irtools.metadata import MODULE, SOURCE

_WIDTH = 8


def transformer(nodes: int, *, modules: bool = True) -> ir.Model:
    """Return a chain of blocks with some `nodes` nodes: normalization, attention and a residual sum in each.

    Args:
        nodes: about how many.
        modules: whether nodes know the module and the line they come from.
    """
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=["batch", 16, _WIDTH])
    made: list[ir.Node] = []
    weights: list[ir.Value] = []
    flow: ir.Value = x
    for block in range(max(1, nodes // _BLOCK)):
        flow = _block(flow, f"blocks.{block}", made, weights, modules)
    flow.name = "y"
    graph = ir.Graph([x], [flow], nodes=made, initializers=weights, opset_imports={"": 20}, name="large")
    return ir.Model(graph, ir_version=10)


def another(nodes: int) -> ir.Model:
    """Return `transformer` with a node renamed, one changed, and one added behind the first Sigmoid."""
    model = transformer(nodes)
    by_operator = {node.op_type: node for node in reversed(list(model.graph))}
    by_operator["LayerNormalization"].name = "renamed"
    by_operator["Softmax"].attributes["axis"] = ir.AttrInt64("axis", 1)
    before = by_operator["Sigmoid"].outputs[0]
    readers = list(before.uses())
    added = ir.node("Tanh", [before], name="added")
    added.outputs[0].name, added.outputs[0].shape, added.outputs[0].type = "new", before.shape, before.type
    model.graph.insert_after(by_operator["Sigmoid"], added)
    for reader, place in readers:
        reader.replace_input_with(place, added.outputs[0])
    return model


_BLOCK = 20


def _block(flow: ir.Value, path: str, made: list[ir.Node], weights: list[ir.Value], modules: bool) -> ir.Value:
    count = 0

    def add(op: str, *inputs: ir.Value | str, module: str = "", **attributes: object) -> ir.Value:
        nonlocal count
        name = f"{path}.{op.lower()}_{count}"
        values = [_weight(f"{name}.{given}", weights) if isinstance(given, str) else given for given in inputs]
        props = {MODULE: f"{path}.{module}" if module else path, SOURCE: f"model.py:{10 + count}"} if modules else {}
        node = ir.node(op, values, attributes, name=name, metadata_props=props)
        out = node.outputs[0]
        out.name, out.shape, out.type = f"{name}_out", ir.Shape(["batch", 16, _WIDTH]), x_type
        made.append(node)
        count += 1
        return out

    x_type = ir.TensorType(ir.DataType.FLOAT)
    start = add("LayerNormalization", flow, "scale", module="norm1")
    query, key, value = (add("MatMul", start, "weight", module=f"attn.{one}") for one in ("q", "k", "v"))
    query, key, value = (add("Add", given, "bias", module="attn") for given in (query, key, value))
    scores = add("MatMul", query, "weight", module="attn")
    scores = add("Mul", scores, key, module="attn")
    scores = add("Softmax", scores, module="attn")
    mixed = add("MatMul", add("Mul", scores, value, module="attn"), "weight", module="attn.out")
    middle = add("Add", flow, mixed)
    hidden = add("MatMul", add("LayerNormalization", middle, "scale", module="norm2"), "weight", module="mlp.fc1")
    hidden = add("Mul", add("Sigmoid", hidden, module="mlp.act"), hidden, module="mlp.act")
    hidden = add("Add", add("MatMul", hidden, "weight", module="mlp.fc2"), "bias", module="mlp.fc2")
    return add("Add", middle, hidden)


def _weight(name: str, weights: list[ir.Value]) -> ir.Value:
    shape = (_WIDTH, _WIDTH) if name.endswith("weight") else (_WIDTH,)
    array = np.random.default_rng(len(weights)).standard_normal(shape, np.float32)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    weights.append(value)
    return value
