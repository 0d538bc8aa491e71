"""Read a model."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from torchport.records import TensorInfo


def tensor_infos(values: Iterable[ir.Value]) -> tuple[TensorInfo, ...]:
    """The records of a model's inputs or outputs."""
    return tuple(
        TensorInfo(
            str(v.name),
            v.dtype.numpy().name if v.dtype is not None else "?",
            None if v.shape is None else tuple(d if isinstance(d, int) else d.value for d in v.shape),
        )
        for v in values
    )
