"""Models as protobuf messages: other tensors put in place, weights iterated and streamed, messages walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto

from torchport.irtools.traversal import all_nodes, graphs


def proto_tensors(proto: ModelProto) -> Iterator[TensorProto | SparseTensorProto]:
    """Every tensor there is in the model, wherever it hides: also the parts of sparse ones."""
    training = [g for info in proto.training_info for g in (info.initialization, info.algorithm)]
    for scope in proto_scopes(proto.graph, *training, *proto.functions):
        if isinstance(scope, GraphProto):
            yield from scope.initializer
            yield from _with_parts(scope.sparse_initializer)
        for attribute in _attributes(scope):
            yield from _attribute_tensors(attribute)


def proto_scopes(*roots: GraphProto | FunctionProto) -> Iterator[GraphProto | FunctionProto]:
    """The graphs and functions given, and all graphs within; a loop, so that no nesting is too deep."""
    pending = list(roots)
    while pending:
        scope = pending.pop()
        yield scope
        for attribute in _attributes(scope):
            pending.extend(proto_subgraphs(attribute))


def proto_subgraphs(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs in an attribute, whatever type it claims to have."""
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def _attributes(scope: GraphProto | FunctionProto) -> Iterator[AttributeProto]:
    if isinstance(scope, FunctionProto):
        yield from scope.attribute_proto
    for node in scope.node:
        yield from node.attribute


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto | SparseTensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield from _with_parts([attribute.sparse_tensor])
    yield from _with_parts(attribute.sparse_tensors)


def _with_parts(sparse: Any) -> Iterator[TensorProto | SparseTensorProto]:
    for tensor in sparse:
        yield tensor
        # A part may be left out, which is another check's business
        yield from (getattr(tensor, part) for part in ("values", "indices") if tensor.HasField(part))


def state_ranks(proto: ModelProto) -> bool:
    """Give inputs and outputs of unknown rank an empty shape; True if there were any.

    The format and engines take them as they are, onnx's checker does not: this is for a copy that it looks at.
    """
    kinds = [
        info.type.tensor_type for info in (*proto.graph.input, *proto.graph.output) if info.type.HasField("tensor_type")
    ]
    unknown = [kind for kind in kinds if not kind.HasField("shape")]
    for kind in unknown:
        kind.shape.SetInParent()
    return bool(unknown)


def proto_graphs(proto: ModelProto) -> list[GraphProto]:
    """Return every graph of a message, those inside its functions too, but not the functions."""
    return [scope for scope in proto_scopes(proto.graph, *proto.functions) if isinstance(scope, GraphProto)]


# The model as it is to be written, its tensors exchanged, while the caller's stays as it is.
#
# A view stands in for each object on the way to a tensor, because cloning a model takes longer than writing it.

Place = Callable[[ir.TensorProtocol], ir.TensorProtocol]
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def to_proto(model: ir.Model, *, place: Place, nested: Place) -> ModelProto:
    """The model's protobuf message with other tensors for its initializers.

    Args:
        model: what to write.
        place: says what goes in the place of an initializer of the main graph.
        nested: the same for initializers of subgraphs, also of those in functions.
    """
    return ir.serde.serialize_model(_ModelView(model, place, nested))  # type: ignore[arg-type]  # has all a model has


def reference(tensor: ir.TensorProtocol, location: str, offset: int) -> ir.ExternalTensor:
    """The same tensor, its bytes in the file `location`."""
    return ir.ExternalTensor(
        location,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def settled(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor in memory: one in a file of its own would be written as a reference to that file.

    A tensor from a protobuf would get its metadata a second time (onnx-ir 1.1), so it is made anew as well.
    """
    proto = isinstance(tensor, ir.serde.TensorProtoTensor)
    if not isinstance(tensor, ir.ExternalTensor) and not (proto and tensor.metadata_props):
        return tensor
    return ir.Tensor(
        tensor.numpy(),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


class _View:
    """Another object, but for what a subclass overrides."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __len__(self) -> int:
        return len(self._of)


class _ModelView(_View):
    def __init__(self, model: ir.Model, place: Place, nested: Place) -> None:
        super().__init__(model)
        self.graph = _GraphView(model.graph, place, nested)
        self.functions = {key: _BodyView(f, nested) for key, f in model.functions.items()}


class _BodyView(_View):
    """A function or graph whose nodes have their tensors and subgraphs placed."""

    def __init__(self, body: Any, nested: Place) -> None:
        super().__init__(body)
        self._nested = nested

    def __iter__(self) -> Iterator[Any]:
        for node in self._of:
            placed = any(a.type in _GRAPHS or a.type in _TENSORS for a in node.attributes.values())
            yield _NodeView(node, self._nested) if placed else node


class _GraphView(_BodyView):
    def __init__(self, graph: Any, place: Place, nested: Place) -> None:
        super().__init__(graph, nested)
        self.initializers = {
            name: value if value.const_value is None else _ValueView(value, place(value.const_value))
            for name, value in graph.initializers.items()
        }


class _ValueView(_View):
    def __init__(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        super().__init__(value)
        self.const_value = tensor


class _NodeView(_View):
    def __init__(self, node: ir.Node, nested: Place) -> None:
        super().__init__(node)
        self.attributes = {name: _placed(a, nested) for name, a in node.attributes.items()}


def _placed(attribute: Any, nested: Place) -> Any:
    if attribute.is_ref() or attribute.type not in (*_GRAPHS, *_TENSORS):
        return attribute
    one: Any = settled if attribute.type in _TENSORS else lambda graph: _GraphView(graph, nested, nested)
    several = attribute.type in (ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS)
    value = [one(v) for v in attribute.value] if several else one(attribute.value)
    return ir.Attr(attribute.name, attribute.type, value, doc_string=attribute.doc_string)


# The tensors a model in memory holds: where they are, and how their bytes get out without being held twice.

_CHUNK = 1 << 20


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: Any, /) -> Any: ...


def weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of the model, of its subgraphs and of those in its functions."""
    for graph in graphs(model):
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)


def unread_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Initializers and attributes whose data lies in a file that is not mapped into memory yet."""
    for tensor in (*weights(model), *_tensors_of_attributes(model)):
        if isinstance(tensor, ir.ExternalTensor) and tensor.raw is None and tensor.size:
            yield tensor


def _tensors_of_attributes(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for attribute in (a for node in all_nodes(model) for a in node.attributes.values() if not a.is_ref()):
        if attribute.type == ir.AttributeType.TENSOR:
            yield attribute.as_tensor()
        elif attribute.type == ir.AttributeType.TENSORS:
            yield from attribute.as_tensors()


def streams(tensor: ir.TensorProtocol) -> bool:
    """Whether the tensor is plain bytes; texts are not."""
    return tensor.dtype != ir.DataType.STRING


def pour(tensor: ir.TensorProtocol, sink: Sink) -> None:
    """Write a tensor's bytes piece by piece, copying none that can be written from where they are.

    Raises:
        ValueError: the tensor holds another number of bytes than its shape and type say.
    """
    counted = _Counted(sink)
    if isinstance(tensor, ir.ExternalTensor) and tensor.raw is None:
        tensor.tofile(counted)  # reads a megabyte at a time, and maps nothing
    else:
        view = _view(tensor)
        for start in range(0, len(view), _CHUNK):
            counted.write(view[start : start + _CHUNK])
    if counted.bytes != tensor.nbytes:
        raise ValueError(f"tensor '{tensor.name}' holds {counted.bytes} bytes and should hold {tensor.nbytes}")


class _Counted:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0

    def write(self, data: Any, /) -> None:
        self._sink.write(data)
        self.bytes += len(data)


def _view(tensor: ir.TensorProtocol) -> memoryview:
    if isinstance(tensor, ir.ExternalTensor) and tensor.raw is not None:
        start = tensor.offset or 0
        return memoryview(tensor.raw)[start : start + tensor.nbytes]
    if tensor.dtype.bitwidth >= 8 and not isinstance(tensor, ir.serde.TensorProtoTensor):
        array = tensor.numpy()
        if array.flags.c_contiguous and array.dtype.newbyteorder("<") == array.dtype:
            return array.reshape(-1).view(np.uint8).data
    return memoryview(tensor.tobytes())
