"""The body that an operator's own schema defines, built from its function definition."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from torchport.irtools import node_reader
from torchport.irtools.builder import Builder
from torchport.irtools.evaluation import known
from torchport.irtools.node_reader import Refusal
from torchport.irtools.schemas import Schema, default_of, schema_at

# Takes an operator apart into the body its own schema gives.
#
# Many operators (Gelu, Swish, Mish, HardSwish, CastLike, RMSNormalization, RotaryEmbedding, Attention, the windows..)
# are defined by such a body, so what stands in their place is right by definition and needs no rule of ours. Bodies are
# written for every shape and dtype, casting constants and computing axes step by step; those steps are done at once.


def has_body(schema: Schema, opset: int) -> bool:
    """Whether `schema` gives a body that can be read at `opset`."""
    return any(version <= opset for version in schema.all_function_opset_versions)


def expand(node: ir.Node, schema: Schema, b: Builder) -> list[ir.Value | None]:
    """Adds the nodes of the body to `b`, and returns what stands for the outputs (None for those not computed)."""
    body = _body(node, schema, b.opset)
    if body is None:
        raise Refusal(f"{node.op_type} cannot be taken apart with what is known of its inputs")
    values: dict[str, ir.Value | None] = dict.fromkeys(body.input)
    values.update(zip(body.input, node.inputs, strict=False))
    attributes = _attributes(node, schema)
    for proto in body.node:
        _add(proto, values, attributes, b)
    return [values.get(name) for name in body.output[: len(node.outputs)]]


def _body(node: ir.Node, schema: Schema, opset: int) -> onnx.FunctionProto | None:
    """Return the newest body that `opset` can read; it may depend on which inputs there are, and on their types."""
    versions = [v for v in schema.all_function_opset_versions if v <= opset]
    if not versions:
        return None
    if max(versions) in schema.function_opset_versions:
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))
    if any(v is not None and v.dtype is None for v in node.inputs):
        return None
    types = [onnx.TypeProto() if v is None else ir.serde.serialize_value(v).type for v in node.inputs]
    built = schema.get_context_dependent_function_with_opset_version(
        max(versions), ir.serde.serialize_node(node).SerializeToString(), [t.SerializeToString() for t in types]
    )
    return onnx.FunctionProto.FromString(built) if built else None


def _attributes(node: ir.Node, schema: Schema) -> dict[str, Any]:
    """What the body's references stand for: the node's attributes, or the schema's defaults."""
    found = {name: attr.default_value for name, attr in schema.attributes.items() if default_of(attr) is not None}
    for name in node.attributes:
        node_reader.attribute(node, name)
        found[name] = ir.serde.serialize_attribute(node.attributes[name])
    return found


def _add(proto: onnx.NodeProto, values: dict[str, ir.Value | None], attributes: dict[str, Any], b: Builder) -> None:
    if any(attr.HasField("g") or attr.graphs for attr in proto.attribute):
        raise Refusal(f"it is first in opset {b.opset}, and its body holds control flow")
    inputs = [values[name] if name else None for name in proto.input]
    given = [attr for p in proto.attribute if (attr := _resolved(p, attributes)) is not None]
    new = ir.Node("", proto.op_type, inputs, given, num_outputs=len(proto.output))
    if (array := known(new, b.opset)) is not None:
        values[proto.output[0]] = b.constant(array)
        return
    b.add(new)
    values.update(zip(proto.output, new.outputs, strict=True))


def _resolved(proto: onnx.AttributeProto, attributes: dict[str, Any]) -> ir.Attr | None:
    if not proto.ref_attr_name:
        return ir.serde.deserialize_attribute(proto)
    found = attributes.get(proto.ref_attr_name)
    if found is None:
        return None
    renamed = onnx.AttributeProto()
    renamed.CopyFrom(found)
    renamed.name = proto.name
    return ir.serde.deserialize_attribute(renamed)


# Operators that the ONNX standard itself defines by simpler ones: Elu, Softplus, Gelu and many more.

_DOMAIN = "torchport.parts"


def inline(node: ir.Node, model: ir.Model) -> list[ir.Node] | None:
    """The standard's own definition in the node's place; None where the standard has none."""
    opset = model.opset_imports.get("", 1)
    schema = schema_at(node.op_type, opset) if node.domain == "" else None
    proto = None if schema is None else _body(node, schema, opset)
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
