"""Fill in the element types that a capture left out, from what the operators' schemas say."""

from __future__ import annotations

import re

import onnx_ir as ir

from torchport.graph.opset_rules.schemas import Schema, formal_at, schema_at

_NAMES = {"float": ir.DataType.FLOAT, "double": ir.DataType.DOUBLE}


def fill_in(graph: ir.Graph | ir.Function, opset: int) -> None:
    """Give every value a type where its node's inputs tell it. Unknown ones stay unknown."""
    for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
        if value.dtype is None and value.const_value is not None:
            value.dtype = value.const_value.dtype
    for node in graph:
        for inner in _subgraphs(node):
            fill_in(inner, opset)
        for index, value in enumerate(node.outputs):
            found = _output_type(node, index, opset) if value.dtype is None else None
            if found is not None:
                value.dtype = found


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def _output_type(node: ir.Node, index: int, opset: int) -> ir.DataType | None:
    if node.op_type in ("If", "Loop", "Scan"):
        return _result_type(node, index)
    for key in ("to", "dtype", "output_dtype"):
        if key in node.attributes and node.attributes[key].type == ir.AttributeType.INT:
            return ir.DataType(node.attributes[key].as_int()) if node.attributes[key].as_int() else None
    if node.op_type in ("Constant", "ConstantOfShape"):
        return _constant_type(node)
    schema = schema_at(node.op_type, opset) if node.domain == "" else None
    return _by_schema(node, index, schema) if schema is not None else None


def _result_type(node: ir.Node, index: int) -> ir.DataType | None:
    outputs = list(_subgraphs(node)[0].outputs)
    place = index + 1 if node.op_type == "Loop" else index  # a loop's body gives its condition first
    return outputs[place].dtype if place < len(outputs) else None


def _constant_type(node: ir.Node) -> ir.DataType | None:
    given = node.attributes.get("value")
    if given is not None:
        return given.as_tensor().dtype
    if node.op_type == "ConstantOfShape":
        return ir.DataType.FLOAT
    name = next(iter(node.attributes), "")
    return {"value_f": ir.DataType.FLOAT, "value_i": ir.DataType.INT64, "value_s": ir.DataType.STRING}.get(name[:7])


def _by_schema(node: ir.Node, index: int, schema: Schema) -> ir.DataType | None:
    wanted = formal_at(schema.outputs, index).type_str
    fixed = re.fullmatch(r"tensor\((\w+)\)", wanted)
    if fixed:
        return _NAMES.get(fixed[1]) or ir.DataType[fixed[1].upper()]
    for place, value in enumerate(node.inputs):
        if value is not None and value.dtype is not None and formal_at(schema.inputs, place).type_str == wanted:
            return value.dtype
    return None
