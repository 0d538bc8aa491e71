"""The model as it is to be written, its tensors exchanged, while the caller's stays as it is.

A view stands in for each object on the way to a tensor, because cloning a model takes longer than writing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir
from onnx import ModelProto

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
