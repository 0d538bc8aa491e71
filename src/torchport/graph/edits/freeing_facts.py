"""What is known of each value at two sizes of one dimension: the size a model was made for, and another.

Both sizes are numbers, so onnx's inference and its reference operators answer exactly: no algebra with names, which
they lose at the first convolution or reshape. A value whose shape differs between the two holds the dimension.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TypeProto

Array = np.ndarray[Any, Any]
Dims = tuple[int | None, ...]

_SMALL = 1024  # elements of a tensor that may be a shape or an index, worth keeping
_INVENTED = ("Dropout", "Bernoulli", "Multinomial")  # their values are not to be foretold


@dataclasses.dataclass(frozen=True)
class Fact:
    """One value at both sizes.

    Attributes:
        old: its type at the size the model was made for.
        new: its type at the other size.
        old_data: its numbers, where known and few.
        new_data: the same at the other size.
        sure: whether the numbers are those of the model, not of a size that was made up for another dimension.
        inner: for each axis, how many elements of it lie inside (after) the dimension, where it is folded with others.
    """

    old: TypeProto
    new: TypeProto
    old_data: Array | None = None
    new_data: Array | None = None
    sure: bool = True
    inner: tuple[int, ...] = ()

    @functools.cached_property
    def changed(self) -> bool:
        """Whether anything known of the value depends on the dimension."""
        if self.old is not self.new and self.old != self.new:
            return True
        if self.old_data is None or self.new_data is None:
            return (self.old_data is None) != (self.new_data is None)
        return self.old_data is not self.new_data and not np.array_equal(self.old_data, self.new_data)

    @property
    def constant(self) -> Array | None:
        """Its numbers where they are the same whatever the sizes are."""
        return self.old_data if self.sure and not self.changed else None

    @functools.cached_property
    def was(self) -> Dims | None:
        return dims_of(self.old)

    @functools.cached_property
    def now(self) -> Dims | None:
        return dims_of(self.new)

    @functools.cached_property
    def held(self) -> list[int]:
        """The axes that hold the dimension."""
        was, now = self.was, self.now
        if was is None or now is None or len(was) != len(now):
            return []
        return [axis for axis, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]

    def inner_of(self, axis: int) -> int:
        return self.inner[axis] if axis < len(self.inner) else 1


def dims_of(kind: TypeProto) -> Dims | None:
    """The shape of a tensor type; None where unknown or no tensor."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim)


def tensor_type(element: int, dims: Sequence[int | None] | None) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(element, None if dims is None else list(dims))


def settled_type(value: ir.Value, sizes: Mapping[str, int]) -> TypeProto:
    """The stated type of a value, numbers in the place of named dimensions."""
    kind = TypeProto()
    if value.type is None:
        return kind
    kind.CopyFrom(ir.serde.serialize_value(value).type)
    if kind.HasField("tensor_type"):
        for dim in kind.tensor_type.shape.dim:
            if dim.dim_param:
                size = _evaluated(dim.dim_param, sizes)
                dim.Clear()
                if size is not None:
                    dim.dim_value = size
    return kind


def _evaluated(text: str, sizes: Mapping[str, int]) -> int | None:
    if text in sizes:
        return sizes[text]
    try:
        found = ir.SymbolicDim(text).evaluate(sizes)
    except (ValueError, TypeError):  # a name that is no expression
        return None
    return found if isinstance(found, int) else None


def constant_fact(tensor: ir.TensorProtocol) -> Fact:
    """What is known of a weight: its data only if it is small."""
    kind = tensor_type(int(tensor.dtype), [int(d) for d in tensor.shape.numpy()])
    keep = tensor.size <= _SMALL and tensor.dtype != ir.DataType.STRING
    data = tensor.numpy() if keep else None
    return Fact(kind, kind, data, data)


class Inference:
    """Types and small results of single operators, each asked once: layers of a network repeat."""

    def __init__(self, model: ir.Model) -> None:
        self._imports = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
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
            found = onnx.shape_inference.infer_node_outputs(
                self.schema(node), plain, given, shown, opset_imports=self._imports, ir_version=self._ir_version
            )
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
            self._data[key] = self._evaluated(plain, given)
        return self._data[key]

    def _evaluated(self, plain: onnx.NodeProto, given: Mapping[str, Array]) -> list[Array] | None:
        from onnx.reference import ReferenceEvaluator

        infos = [onnx.helper.make_tensor_value_info(n, _element(v), v.shape) for n, v in given.items()]
        ends = [onnx.ValueInfoProto(name=name) for name in plain.output if name]
        graph = onnx.helper.make_graph([plain], "one", infos, ends)
        message = onnx.helper.make_model(graph, opset_imports=self._imports, ir_version=self._ir_version)
        try:
            found = [np.asarray(v) for v in ReferenceEvaluator(message).run(None, dict(given))]
        except Exception:  # noqa: BLE001 - not known then: whatever needs the numbers refuses with that reason
            return None
        return found if all(v.size <= _SMALL for v in found) else None


def _huge(node: ir.Node, data: Sequence[Array | None]) -> bool:
    """Whether the result of an operator that makes a tensor from few numbers would not be kept anyway."""
    known = [v for v in data if v is not None]
    if node.op_type == "ConstantOfShape":
        return bool(np.prod(known[0], dtype=np.float64) > _SMALL)
    if node.op_type in ("Expand", "Tile"):
        return bool(np.prod(known[1], dtype=np.float64) > _SMALL)
    return node.op_type == "Range" and bool(abs(known[1] - known[0]) > _SMALL * abs(known[2]))


def _element(array: Array) -> int:
    return int(ir.DataType.from_numpy(array.dtype))


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
