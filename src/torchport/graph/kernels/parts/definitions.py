"""Operators that the ONNX standard itself defines by simpler ones: Elu, Softplus, Gelu and many more."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from torchport.graph.opset_rules.schemas import Schema, schema_at

_DOMAIN = "torchport.parts"


def inline(node: ir.Node, model: ir.Model) -> list[ir.Node] | None:
    """The standard's own definition in the node's place; None where the standard has none."""
    opset = model.opset_imports.get("", 1)
    schema = schema_at(node.op_type, opset) if node.domain == "" else None
    proto = None if schema is None else _definition(node, schema, opset)
    if proto is None:
        return None
    before = {id(n) for n in model.graph.all_nodes()}
    proto.domain, proto.name = _DOMAIN, f"{node.op_type}_{len(before)}"
    function = ir.serde.deserialize_function(proto)
    function.opset_imports.update({"": opset})
    model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
    node.domain, node.op_type = _DOMAIN, proto.name
    props = dict(node.metadata_props)
    InlinePass()(model)
    model.opset_imports.pop(_DOMAIN, None)
    new = [n for n in model.graph.all_nodes() if id(n) not in before]
    for part in new:
        part.metadata_props.update(props)
    return new


def _definition(node: ir.Node, schema: Schema, opset: int) -> onnx.FunctionProto | None:
    if schema.has_context_dependent_function:
        given = ir.serde.serialize_node(node)
        types = [_type(v) for v in node.inputs]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if not versions:
            return None
        built = schema.get_context_dependent_function_with_opset_version(
            max(versions), given.SerializeToString(), [t.SerializeToString() for t in types]
        )
        return onnx.FunctionProto.FromString(built) if built else None
    if not schema.has_function:
        return None
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if not versions:
        return None
    return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))


def _type(value: ir.Value | None) -> onnx.TypeProto:
    return onnx.TypeProto() if value is None or value.type is None else ir.serde.serialize_type(value.type)
