"""Types and results of single operators, by onnx's inference and its reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TypeProto

from torchport.graph.edits.freeing.facts import FEW
from torchport.tensors import Array

_INVENTED = ("Dropout", "Bernoulli", "Multinomial")  # their values are not to be foretold


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
        return found if all(v.size <= FEW for v in found) else None


def _huge(node: ir.Node, data: Sequence[Array | None]) -> bool:
    """Whether the result of an operator that makes a tensor from few numbers would not be kept anyway."""
    known = [v for v in data if v is not None]
    if node.op_type == "ConstantOfShape":
        return bool(np.prod(known[0], dtype=np.float64) > FEW)
    if node.op_type in ("Expand", "Tile"):
        return bool(np.prod(known[1], dtype=np.float64) > FEW)
    return node.op_type == "Range" and bool(abs(known[1] - known[0]) > FEW * abs(known[2]))


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
