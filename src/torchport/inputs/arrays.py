"""Arrays that a user gives for a tensor, read from numbers, lists and files; and summaries of arrays."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import FileError, InputError, SaveError, first_line
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
    text = first_line(error)
    return "it holds no plain arrays" if "allow_pickle" in text or "pickled" in text else text


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


# Arrays on the command line: read inputs, save and show outputs.


def check_output(path: str) -> None:
    target = Path(path)
    if target.suffix not in (".npz", ".npy"):
        raise SaveError(f"'{path}' is neither .npz nor .npy", next_step="name it out.npz")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise SaveError(f"the folder of '{path}' is missing or cannot be written", next_step="make it first")


def save(path: str, outputs: Mapping[str, Array]) -> None:
    """Write to a temporary name first, so that a half file is never left."""
    from torchport.inputs.samples import save_sample

    target = Path(path)
    if target.suffix == ".npz":
        save_sample(target, outputs)
        return
    if len(outputs) != 1:
        raise SaveError(f"there are {len(outputs)} outputs, a .npy holds one", next_step="name it out.npz")
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(part, "wb") as file:
            np.save(file, next(iter(outputs.values())), allow_pickle=False)
        os.replace(part, target)
    except OSError as error:
        raise SaveError(f"'{path}' cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def summary(array: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind not in "OSUc":
        wide = array.astype(np.float64)
        found |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return found


def one_line(array: Array) -> str:
    figures = summary(array)
    shape = ",".join(map(str, figures["shape"]))
    text = f"{figures['dtype']}[{shape}]"
    if "mean" in figures and math.prod(figures["shape"]) > 8:
        return text + f"  min {figures['min']:.6g}  max {figures['max']:.6g}  mean {figures['mean']:.6g}"
    return text + "  " + np.array2string(array, precision=6, separator=", ", max_line_width=10**6)
