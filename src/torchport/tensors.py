"""Dtype names, and the one place where torch tensors and numpy arrays turn into each other.

A dtype is written as torch and numpy write it: ``float32``, ``bfloat16``, ``int64``, ``bool``. numpy has no
bfloat16 or float8 of its own; `ml_dtypes` lends them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from torchport.errors import InputError

if TYPE_CHECKING:
    import torch


Array = np.ndarray[Any, Any]


FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)

_LENT = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of that name, `ml_dtypes`' where numpy has none."""
    if name in _LENT:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor, without importing torch for values that are not."""
    kind: type = type(value)
    return _is_torch_type(kind)


@functools.cache
def _is_torch_type(kind: type) -> bool:
    named = any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)
    return named or kind.__module__.startswith("torch")


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy array of the tensor's values, sharing memory where it can."""
    import torch

    if type(tensor) is torch.Tensor:
        try:
            return tensor.numpy()
        except (RuntimeError, TypeError):
            pass  # one that needs what follows
    if tensor.layout != torch.strided or tensor.dtype == torch.complex32:
        kind = "complex32" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")
        raise InputError(
            f"a {kind} tensor cannot go to ONNX",
            next_step="use complex64" if kind == "complex32" else "make it dense with .to_dense() inside the model",
        )

    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    name = dtype_name(tensor.dtype)
    if name in _LENT:
        bits = torch.int16 if name == "bfloat16" else torch.uint8
        return tensor.contiguous().view(bits).numpy().view(numpy_dtype(name))
    return tensor.numpy()


def as_pairs(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Complex numbers as real and imaginary part, along a last axis of size two; all else as it is.

    No engine computes with ONNX's complex types, so that is how ONNX models take and give them.
    """
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A torch tensor of the array's values; the array is copied where torch may not write to it."""
    import torch

    flags = array.flags
    if not (flags.writeable and flags.c_contiguous):
        array = np.array(array, order="C")
    if array.dtype.isbuiltin != 1 and (name := array.dtype.name) in _LENT:
        bits = np.int16 if name == "bfloat16" else np.uint8
        return torch.from_numpy(array.view(bits)).view(getattr(torch, name))
    return torch.from_numpy(array)


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` is ``float32`` here."""
    return str(dtype).removeprefix("torch.")
