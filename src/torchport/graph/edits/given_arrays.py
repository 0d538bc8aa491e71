"""Arrays that a user gives: numbers, lists, tensors and files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import FileError, InputError
from torchport.irtools.types import plain
from torchport.tensors import Array, is_torch, to_numpy


def tensor_for(given: ir.Value, value: Any) -> ir.TensorProtocol:
    """What a user gives for an input, as a tensor of its dtype; one number fills a fixed shape."""
    dtype = given.dtype
    assert dtype is not None
    if dtype == ir.DataType.STRING:
        return _texts(given, value)
    array = _array(given, value)
    static = given.shape is not None and given.shape.is_static()
    if array.ndim == 0 and given.shape is not None and len(given.shape) > 0 and static:
        array = np.full(given.shape.numpy(), array)
    return ir.Tensor(array, dtype=dtype, name=given.name)


def _texts(given: ir.Value, value: Any) -> ir.TensorProtocol:
    array = np.asarray(value, dtype=object)
    if not all(isinstance(one, str) for one in array.flat):
        raise InputError(f"the input '{given.name}' takes texts", next_step="give a text or a list of texts")
    encoded = [one.encode() for one in array.flat]
    return ir.StringTensor(encoded, shape=ir.Shape(array.shape), name=given.name)


def _array(given: ir.Value, value: Any) -> Array:
    """The numbers in the input's dtype; an array must have it already, numbers of Python get it."""
    assert given.dtype is not None
    if isinstance(value, (str, os.PathLike)):
        value = _npy(given, Path(value))
    if is_torch(value):
        value = to_numpy(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return same_dtype(np.asarray(value), given.dtype, f"input '{given.name}'")
    try:
        array = np.array(value)
    except ValueError as error:
        raise InputError(f"the lists for '{given.name}' are not even", next_step="give each the same length") from error
    return _from_python(given, array)


def _npy(given: ir.Value, path: Path) -> Array:
    if path.suffix != ".npy":
        raise InputError(f"'{path}' is no value for the input '{given.name}'", next_step="give numbers, or a .npy file")
    with reading(path):
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong while a file is read is said of that file."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        missing = isinstance(error, FileNotFoundError)
        raise FileError(
            "the file is missing" if missing else f"it cannot be read: {_reason(error)}",
            where=str(path),
            next_step="check the path" if missing else "write the file again",
        ) from error


def _reason(error: Exception) -> str:
    """numpy takes whatever is no array for a pickle, and says how to load that."""
    text = str(error).splitlines()[0]
    return "it holds no plain arrays" if "allow_pickle" in text or "pickled" in text else text[:200]


def _from_python(given: ir.Value, array: Array) -> Array:
    assert given.dtype is not None
    wanted = given.dtype.numpy()
    number = array.dtype.kind in "iuf" and given.dtype != ir.DataType.BOOL
    fits = array.dtype.kind == "b" and given.dtype == ir.DataType.BOOL
    if array.dtype.kind == "f" and number:
        fits = given.dtype.is_floating_point()
    elif number:
        with np.errstate(all="ignore"):
            fits = given.dtype.is_floating_point() or np.array_equal(array.astype(wanted), array)
    if not fits:
        raise InputError(
            f"the input '{given.name}' is {plain(given.dtype)}, and cannot be {str(array.tolist())[:60]}",
            next_step=f"give values of {plain(given.dtype)}",
        )
    return array.astype(wanted)


def same_dtype(array: Array, dtype: ir.DataType, what: str) -> Array:
    """The array, which must be of a dtype already; `what` it is for is said in the error."""
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.numpy().itemsize:
        return array.view(dtype.numpy())  # how numpy's files keep bfloat16 and the like
    if array.dtype != dtype.numpy():
        raise InputError(
            f"the {what} is {plain(dtype)}, what is given is {array.dtype.name}",
            next_step=f"convert it first: .astype('{plain(dtype)}'), or .to(torch.{plain(dtype)})",
        )
    return array
