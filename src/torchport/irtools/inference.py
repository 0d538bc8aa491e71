"""Infer types and shapes of a model or of one node, with onnx's inference and the operators' schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import ModelProto, TensorProto, TypeProto

from torchport.irtools.evaluation import FEW, run_node
from torchport.irtools.schemas import Schema, formal_at, schema_at
from torchport.irtools.serialization import proto_graphs, reference, settled, to_proto
from torchport.irtools.traversal import subgraphs
from torchport.tensors import Array

# Raised where nothing can be inferred: shapes that do not fit or do not end, names that are no text
UNINFERABLE = (onnx.shape_inference.InferenceError, RuntimeError, ValueError, ir.serde.SerdeError)
InferenceError = onnx.shape_inference.InferenceError

_SMALL_WEIGHT = 1024  # bytes of a weight worth showing to inference, as it may be a shape


def infer_shapes(proto: ModelProto, *, strict: bool = False, check_type: bool = False) -> ModelProto:
    """Return the message with the types and shapes that onnx infers; nothing else calls its inference of models.

    Args:
        proto: the model; its weights need not be there, but for small ones.
        strict: raise where inference fails, instead of leaving values without a shape.
        check_type: raise where an input has a type that its operator does not take.

    Raises:
        InferenceError: types or shapes contradict each other.
    """
    return onnx.shape_inference.infer_shapes(proto, check_type=check_type, strict_mode=strict, data_prop=True)


def infer_node(
    schema: Any,
    node: onnx.NodeProto,
    types: Mapping[str, TypeProto],
    data: Mapping[str, TensorProto],
    *,
    opsets: Mapping[str, int],
    ir_version: int = onnx.IR_VERSION,
) -> dict[str, TypeProto]:
    """Return the types of a node's outputs by name, given those of its inputs and the values of some.

    Raises:
        InferenceError: the inputs do not fit the operator.
    """
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.shape_inference.infer_node_outputs(
        schema, node, dict(types), dict(data), opset_imports=imports, ir_version=ir_version
    )


def inferred(model: ir.Model) -> ir.Model | None:
    """Return a copy of the graphs with all that onnx infers, large weights left out; None where inference fails."""
    try:
        return ir.from_proto(infer_shapes(without_weights(model)))
    except InferenceError:
        return None


def contradiction(model: ir.Model) -> str | None:
    """Return why the types and shapes of a model contradict each other; None if they do not, as far as onnx can see."""
    try:
        infer_shapes(without_weights(model), strict=True, check_type=True)
    except InferenceError as error:
        return " ".join(str(error).split())
    return None


def infer_missing(model: ir.Model) -> None:
    """Set every type and shape that is missing and can be inferred; what is stated stays as it is.

    onnx-ir's pass takes a sequence for a tensor of its elements, and overwrites what is stated.
    """
    values = [value for graph in model.graphs() for node in graph for value in node.outputs]
    if all(value.type is not None and value.shape is not None for value in values):
        return
    found = inferred(model)
    if found is None:
        return  # what needs a type then refuses with that reason
    for graph, typed in zip(model.graphs(), found.graphs(), strict=True):
        known = ir.convenience.create_value_mapping(typed)
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if name in known:
                value.type = value.type if value.type is not None else known[name].type
                value.shape = value.shape if value.shape is not None else known[name].shape


def without_weights(model: ir.Model) -> ModelProto:
    """Return the model's message, its large weights left out: they refer to a file that is not there."""

    def small(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        large = tensor.dtype != ir.DataType.STRING and tensor.nbytes > _SMALL_WEIGHT
        return reference(tensor, "left-out", 0) if large else settled(tensor)

    return to_proto(model, place=small, nested=small)


def drop_weights(proto: ModelProto) -> None:
    """The same for a message, in place: so that a copy of it takes no memory."""
    for graph in proto_graphs(proto):
        for tensor in graph.initializer:
            if tensor.HasField("raw_data") and len(tensor.raw_data) > _SMALL_WEIGHT:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value="left-out")


# Fill in the element types that a capture left out, from what the operators' schemas say.

_NAMES = {"float": ir.DataType.FLOAT, "double": ir.DataType.DOUBLE}


def fill_in(graph: ir.Graph | ir.Function, opset: int) -> None:
    """Give every value a type where its node's inputs tell it. Unknown ones stay unknown."""
    for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
        if value.dtype is None and value.const_value is not None:
            value.dtype = value.const_value.dtype
    for node in graph:
        for inner in subgraphs(node):
            fill_in(inner, opset)
        for index, value in enumerate(node.outputs):
            found = _output_type(node, index, opset) if value.dtype is None else None
            if found is not None:
                value.dtype = found


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
    outputs = list(subgraphs(node)[0].outputs)
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


# Types and results of single operators, by onnx's inference and its reference implementation.

_INVENTED = ("Dropout", "Bernoulli", "Multinomial")  # their values are not to be foretold


class Inference:
    """Types and small results of single operators, each asked once: layers of a network repeat."""

    def __init__(self, model: ir.Model) -> None:
        self._versions = dict(model.opset_imports)
        self._ir_version = min(model.ir_version or 10, 10)
        self._types: dict[tuple[bytes, ...], list[TypeProto]] = {}
        self._data: dict[tuple[object, ...], list[Array] | None] = {}

    def schema(self, node: ir.Node) -> Any:
        """The schema of the node's operator, None if onnx knows none."""
        version = self._versions.get(node.domain)
        if version is None or not onnx.defs.has(node.op_type, version, node.domain):
            return None
        return onnx.defs.get_schema(node.op_type, version, node.domain)

    def types(
        self, node: ir.Node, proto: onnx.NodeProto, kinds: Sequence[TypeProto | None], data: Sequence[Array | None]
    ) -> list[TypeProto]:
        """The types of the outputs; raises `onnx.shape_inference.InferenceError` where the inputs do not fit."""
        plain = _renamed(proto)
        shown = {
            f"i{n}": onnx.numpy_helper.from_array(np.ascontiguousarray(d)) for n, d in enumerate(data) if d is not None
        }
        given = {f"i{n}": kind for n, kind in enumerate(kinds) if kind is not None}
        messages: list[Any] = [plain, *given.values(), *shown.values()]
        parts = [message.SerializeToString(deterministic=True) for message in messages]
        key = (*parts, ",".join(given).encode(), ",".join(shown).encode())
        if key not in self._types:
            schema, versions = self.schema(node), self._versions
            found = infer_node(schema, plain, given, shown, opsets=versions, ir_version=self._ir_version)
            self._types[key] = [found.get(f"o{n}", TypeProto()) for n in range(len(proto.output))]
        return self._types[key]

    def data(self, node: ir.Node, proto: onnx.NodeProto, data: Sequence[Array | None]) -> list[Array] | None:
        """What a node gives for known numbers; None where it is large, random, or the reference does not have it."""

        if node.domain != "" or node.op_type.startswith("Random") or node.op_type in _INVENTED or _huge(node, data):
            return None
        plain = _renamed(proto)
        given = {f"i{n}": value for n, value in enumerate(data) if value is not None}
        shown = tuple((n, v.dtype.str, v.shape, v.tobytes()) for n, v in given.items())
        key = (plain.SerializeToString(deterministic=True), *shown)
        if key not in self._data:
            self._data[key] = self._evaluated(plain, data)
        return self._data[key]

    def _evaluated(self, plain: onnx.NodeProto, given: Sequence[Array | None]) -> list[Array] | None:
        try:
            found = run_node(plain, given, self._versions[""], count=len(plain.output))
        except Exception:  # noqa: BLE001 - not known then: whatever needs the numbers refuses with that reason
            return None
        found = [array for array, name in zip(found, plain.output, strict=True) if name]
        return found if all(v.size <= FEW for v in found) else None


def _huge(node: ir.Node, data: Sequence[Array | None]) -> bool:
    """Whether the result of an operator that makes a tensor from few numbers would not be kept anyway."""
    known = [v for v in data if v is not None]
    if node.op_type == "ConstantOfShape":
        return bool(np.prod(known[0], dtype=np.float64) > FEW)
    if node.op_type in ("Expand", "Tile"):
        return bool(np.prod(known[1], dtype=np.float64) > FEW)
    return node.op_type == "Range" and bool(abs(known[1] - known[0]) > FEW * abs(known[2]))


def _renamed(proto: onnx.NodeProto) -> onnx.NodeProto:
    """The node with its values called by their place, so that nodes alike are the same."""
    plain = onnx.NodeProto()
    plain.CopyFrom(proto)
    plain.ClearField("name")
    plain.ClearField("doc_string")
    plain.ClearField("metadata_props")
    plain.input[:] = [f"i{n}" if name else "" for n, name in enumerate(proto.input)]
    plain.output[:] = [f"o{n}" if name else "" for n, name in enumerate(proto.output)]
    return plain
