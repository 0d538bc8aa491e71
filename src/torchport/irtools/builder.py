"""Build nodes with names, types, shapes and the origin of the node that they replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import onnx
import onnx_ir as ir

from torchport.irtools import node_reader
from torchport.irtools.inference import UNINFERABLE, infer_node
from torchport.irtools.schemas import schema_even_if_deprecated
from torchport.tensors import Array

_FLOATS_OF_CONSTANT_1 = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_SMALL = 4096  # elements of a constant worth showing to shape inference


class Builder:
    """Collects new nodes for `opset`, to be put in the place of `node`.

    Each new value is typed by onnx's own inference for that one operator, so later rules find the ranks and
    dtypes they need without inferring the whole model again.

    Example:
        >>> b = Builder(node, 16, fresh)
        >>> mean = b.reduce("ReduceMean", x, [-1])
        >>> centered = b.op("Sub", x, mean)
    """

    def __init__(self, node: ir.Node, opset: int, fresh: Callable[[str], str]) -> None:
        self.node = node
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.fresh = fresh

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Lets go of the inputs when the rule refused, or they would seem to be read by nodes of no graph."""
        if kind is not None:
            for node in self.nodes:
                for index in range(len(node.inputs)):
                    node.replace_input_with(index, None)

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Adds an operator with one output."""
        return self.ops(op_type, inputs, 1, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[ir.Value | None], count: int, **attributes: Any) -> Sequence[ir.Value]:
        """Adds an operator with `count` outputs; attributes that are None are left out."""
        given = {name: value for name, value in attributes.items() if value is not None}
        node = ir.node(op_type, list(inputs), attributes=given, num_outputs=count)
        return self.add(node).outputs

    def add(self, node: ir.Node) -> ir.Node:
        """Takes in a ready node: names it, gives it the origin of the replaced node, and infers its types."""
        again = any(n.op_type == node.op_type for n in self.nodes) or node.op_type != self.node.op_type
        own = self.node.name
        node.name = own if own and not again else self.fresh(f"{own or self._base()}_{node.op_type}")
        node.metadata_props.update(self.node.metadata_props)
        node.doc_string = self.node.doc_string
        for output in node.outputs:
            output.name = self.fresh(f"{self._base()}_{node.op_type.lower()}")
        self.nodes.append(node)
        if node.op_type == "Constant" and "value" in node.attributes:
            _set_tensor_type(node.outputs[0], node.attributes["value"].as_tensor())
        else:
            self._infer(node)
        return node

    def constant(self, value: Any, dtype: Any = None) -> ir.Value:
        """Adds a Constant; `dtype` is numpy's."""
        with np.errstate(over="ignore"):  # a bound beyond the dtype is infinite in it
            return self.constant_tensor(ir.tensor(np.asarray(value, dtype=dtype)))

    def constant_tensor(self, tensor: ir.TensorProtocol) -> ir.Value:
        """Adds a Constant, or below opset 9, where Constant holds floats alone, an initializer."""
        if self.opset >= 9 or tensor.dtype in _FLOATS_OF_CONSTANT_1:
            return self.add(ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])).outputs[0]
        own = _copy(tensor)  # an initializer gives its tensor its name, and this one may belong to another model
        value = ir.Value(
            name=self.fresh(f"{self._base()}_constant"),
            type=ir.TensorType(tensor.dtype),
            shape=own.shape,
            const_value=own,
        )
        self.initializers.append(value)
        return value

    def ints(self, values: Sequence[int]) -> ir.Value:
        return self.constant(values, np.int64)

    def scalar_like(self, number: float, value: ir.Value) -> ir.Value:
        """A scalar of the dtype of `value`, which broadcasts against it."""
        return self.constant(number, node_reader.dtype(value).numpy())

    def cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        """Casts unless `value` is of that dtype already."""
        return value if value.dtype == to else self.op("Cast", value, to=int(to))

    def reduce(self, op_type: str, x: ir.Value, axes: Sequence[int], keepdims: int = 1) -> ir.Value:
        """A reduction, its axes an input or an attribute as the opset has it."""
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, x, self.ints(axes), keepdims=keepdims)
        return self.op(op_type, x, axes=list(axes), keepdims=keepdims)

    def unsqueeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self._with_axes("Unsqueeze", x, axes)

    def squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self._with_axes("Squeeze", x, axes)

    def slice(self, x: ir.Value, start: int, end: int) -> ir.Value:
        """``x[start:end]`` along the first axis."""
        if self.opset >= 10:
            return self.op("Slice", x, self.ints([start]), self.ints([end]), self.ints([0]))
        return self.op("Slice", x, starts=[start], ends=[end], axes=[0])

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        """The size of one axis of `x`, as an int64 vector of one element."""
        known = node_reader.static_dim(x, axis)
        if known is not None:
            return self.ints([known])
        return self.op("Gather", self.op("Shape", x), self.ints([axis]), axis=0)

    def _with_axes(self, op_type: str, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        if self.opset >= 13:
            return self.op(op_type, x, self.ints(axes))
        return self.op(op_type, x, axes=list(axes))

    def _base(self) -> str:
        names = [output.name for output in self.node.outputs if output.name]
        return names[0] if names else (self.node.name or self.node.op_type)

    def _infer(self, node: ir.Node) -> None:
        schema = schema_even_if_deprecated(node.op_type, self.opset)
        given = [value for value in node.inputs if value is not None]
        if schema is None or any(value.type is None for value in given):
            return
        types = {str(value.name): ir.serde.serialize_value(value).type for value in given}
        data = {str(value.name): proto for value in given if (proto := _tensor_proto(value)) is not None}
        try:
            found = infer_node(schema, ir.serde.serialize_node(node), types, data, opsets={"": self.opset})
        except UNINFERABLE:
            return  # untyped: whatever needs the type later refuses with that reason
        for output in node.outputs:
            _set_type(output, found.get(str(output.name)))


def _copy(tensor: ir.TensorProtocol) -> ir.Tensor[Any] | ir.StringTensor:
    array = tensor.numpy()
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(array, shape=ir.Shape(array.shape))
    return ir.Tensor(array, dtype=tensor.dtype)


def _tensor_proto(value: ir.Value) -> onnx.TensorProto | None:
    array: Array | None = node_reader.constant(value)
    if array is None or array.size > _SMALL or array.dtype == object:
        return None
    return ir.serde.serialize_tensor(ir.tensor(array))


def _set_tensor_type(output: ir.Value, tensor: ir.TensorProtocol) -> None:
    output.type = ir.TensorType(tensor.dtype)
    output.shape = ir.Shape([int(size) for size in tensor.shape.numpy()])


def _set_type(output: ir.Value, proto: onnx.TypeProto | None) -> None:
    if proto is None or not proto.WhichOneof("value"):
        return
    output.type = ir.serde.deserialize_type_proto_for_type(proto)
    output.shape = ir.serde.deserialize_type_proto_for_shape(proto)


class Steps(Builder):
    """Collects the nodes that will stand for `node`. A name of an operator is a method: ``steps.Add(a, 1.0)``.

    Numbers become constants of the node's own type, lists of integers become int64. New values are named after the
    node's first output; their types are left to `fill_in`, as a decomposition may be tried and thrown away.
    """

    def __init__(self, node: ir.Node) -> None:
        super().__init__(node, onnx.defs.onnx_opset_version(), str)
        self._dtype = next(v.dtype for v in node.inputs if v is not None)

    def __getattr__(self, op_type: str) -> Any:
        def build(*inputs: Any, **attributes: Any) -> ir.Value:
            return self.op(op_type, *map(self.value, inputs), **attributes)

        return build

    def value(self, given: Any) -> ir.Value | None:
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, list):
            return self.ints(given)
        assert self._dtype is not None
        return self.constant(given, self._dtype.numpy())

    def add(self, node: ir.Node) -> ir.Node:
        (output,) = node.outputs
        output.name = f"{self.node.outputs[0].name}.part{len(self.nodes)}"
        if node.op_type == "Constant":
            tensor = node.attributes["value"].as_tensor()
            tensor.name, output.type = output.name, ir.TensorType(tensor.dtype)
        else:
            node.metadata_props.update(self.node.metadata_props)
        self.nodes.append(node)
        return node

    def replace(self, result: ir.Value) -> list[ir.Node]:
        """Put the nodes in the place of the old one, whose first output is `result` from now on."""
        old, graph = self.node.outputs[0], self.node.graph
        assert graph is not None
        graph.insert_before(self.node, self.nodes)
        result.type, result.shape = old.type, old.shape
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        result.name, old.name = old.name, f"{old.name}.replaced"
        graph.remove(self.node, safe=True)
        return self.nodes
