"""The tensors a model in memory holds: where they are, and how their bytes get out without being held twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

_CHUNK = 1 << 20


class Sink(Protocol):
    """What bytes are written to."""

    def write(self, data: Any, /) -> Any: ...


def bodies(model: ir.Model) -> list[ir.Graph]:
    """The model's graph and those of its functions, without the graphs inside these."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The initializers of the model, of its subgraphs and of those in its functions."""
    for body in bodies(model):
        for graph in (body, *body.subgraphs()):
            yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)


def unread_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Initializers and attributes whose data lies in a file that is not mapped into memory yet."""
    for tensor in (*weights(model), *_attribute_tensors(model)):
        if isinstance(tensor, ir.ExternalTensor) and tensor.raw is None and tensor.size:
            yield tensor


def _attribute_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for body in bodies(model):
        for node in body.all_nodes():
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
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
