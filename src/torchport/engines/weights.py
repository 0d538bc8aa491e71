"""Hand a model's weights to an engine beside its graph, without copying them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

LARGE = 3 << 29  # 1.5 GiB: from here on weights do not pass through protobuf
_SMALL = 1 << 12  # weights below this stay in the graph: shapes and axes, which optimizers look at


def without_weights(model: ir.Model) -> tuple[bytes, dict[str, Array]]:
    """The model's bytes with its weights only announced, and the weights by name."""
    arrays: dict[str, Array] = {}
    kept: dict[str, Any] = {}
    try:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= _SMALL:
                arrays[name], kept[name] = np.ascontiguousarray(tensor.numpy()), tensor
                value.const_value = _Announced(tensor)
        return ir.to_proto(model).SerializeToString(deterministic=True), arrays
    finally:
        for name, tensor in kept.items():
            model.graph.initializers[name].const_value = tensor


class _Announced(ir.ExternalTensor):
    """A tensor that says its values lie elsewhere."""

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        super().__init__(
            "given-by-torchport",
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.numpy().shape),
            name=str(tensor.name),
        )
