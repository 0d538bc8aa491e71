"""Types as text and as onnx_ir objects: dtypes, tensor types, operator names and domains."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.results import TensorInfo

_KNOWN_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms")  # ONNX's and its engines'; every other is somebody's own


def tensor_infos(values: Iterable[ir.Value]) -> tuple[TensorInfo, ...]:
    """The records of a model's inputs or outputs."""
    return tuple(
        TensorInfo(
            str(v.name),
            plain(v.dtype) if v.dtype is not None else "?",
            None if v.shape is None else tuple(d if isinstance(d, int) else d.value for d in v.shape),
        )
        for v in values
    )


def operator_name(node: ir.Node) -> str:
    """``Conv``; ``my::FooOp`` for one that is not ONNX's."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def is_custom(node: ir.Node) -> bool:
    """Check that a node's operator is neither ONNX's nor an engine's own."""
    known = any(node.domain == d or node.domain.startswith(d + ".") for d in _KNOWN_DOMAINS)
    return bool(node.domain) and not known


def dtype_name(dtype: ir.DataType | None) -> str:
    """As torch and numpy write it: ``float32``, ``int4``."""
    if dtype is None:
        return "?"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def type_text(kind: ir.TypeProtocol | None) -> str:
    """``float32``, ``seq(float32)``, ``optional(int64)``."""
    if isinstance(kind, ir.SequenceType):
        return f"seq({type_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({type_text(kind.elem_type)})"
    return dtype_name(kind.dtype if kind is not None else None)


def dtype_named(text: str) -> ir.DataType:
    """The dtype a user means.

    Raises:
        InputError: there is none of that name.
    """
    names = {d.numpy().name: d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}
    if text not in names:
        hint = did_you_mean(str(text), names, f"it is one of {', '.join(names)}")
        raise InputError(f"there is no dtype '{text}'", next_step=hint)
    return names[text]


def plain(dtype: ir.DataType) -> str:
    """A dtype as numpy and PyTorch write it."""
    return "string" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def agrees(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values can be of one type and shape, as far as both are known."""
    if one.type is not None and other.type is not None and one.type != other.type:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = list(zip(one.shape, other.shape, strict=False))
    return len(one.shape) == len(other.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs
    )


def described(value: ir.Value) -> str:
    """``float32[batch,3]``"""
    dims = [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    shape = "" if value.shape is None else f"[{','.join('?' if d is None else str(d) for d in dims)}]"
    return f"{type_text(value.type)}{shape}"
