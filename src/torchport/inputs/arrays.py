"""Arrays that a user gives for a tensor, read from numbers, lists and files; and summaries of arrays."""

from __future__ import annotations

import contextlib
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.errors import FileError, InputError, SaveError, first_line
from torchport.files.filesystem import write_atomically
from torchport.irtools.types import plain
from torchport.tensors import Array, is_torch, to_numpy

_LARGE = 1 << 30  # bytes below which an .npz may unpack to any size
_MOST_TIMES = 100  # its own size, for a larger one

# What numpy and zipfile raise over a damaged file
_DAMAGE = (
    *(OSError, ValueError, EOFError, SyntaxError, MemoryError, OverflowError, KeyError, AttributeError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
)


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
    return read_arrays(path)["arr_0"]


def read_arrays(path: Path, key: str | None = None) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` by name, or only that of `key`; the one of an ``.npy`` as ``arr_0``.

    The file may come from anywhere: no pickle is opened, and no more memory is taken than the machine has.

    Raises:
        InputError: the file is missing or broken, holds Python objects, or has no array `key`.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(6)
        if start.startswith(b"\x93NUMPY"):
            # a memory map checks the header's claims against the file's size before any memory is taken
            return {"arr_0": np.array(np.load(path, mmap_mode="r", allow_pickle=False))}
        if not start.startswith((b"PK\x03\x04", b"PK\x05\x06")):  # numpy would take it for a pickle
            raise unreadable(path, "it is no file of numpy's" if start else "it is empty")
        return _members(path, key)
    except _DAMAGE as error:
        raise unreadable(path, _reason(error)) from error


def _members(path: Path, key: str | None) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > memory():
        raise unreadable(path, f"it unpacks to {size:,} bytes, more than the memory")
    packed = path.stat().st_size
    if size > _LARGE and size > _MOST_TIMES * packed:
        raise InputError(
            f"'{path}' cannot be read: {packed:,} bytes unpack to {size:,}, as in a file made to fill the memory",
            next_step="write it with numpy.savez, which does not compress",
        )
    with np.load(path, allow_pickle=False) as arrays:
        if key is not None and key not in arrays.files:
            raise unreadable(path, f"it has no '{key}', only {', '.join(arrays.files) or 'nothing'}")
        return {name: arrays[name] for name in arrays.files if key in (None, name)}


def unreadable(path: Path, reason: str) -> InputError:
    """Return the error for a file whose content is no array."""
    return InputError(
        f"'{path}' cannot be read: {reason}",
        next_step="save arrays of numbers with numpy.save or numpy.savez, tensors with torch.save",
    )


def memory() -> int:
    """Return the bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 1 << 40


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Report an error while a file of weights is read as one of that file."""
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
    """Return why a file cannot be read; numpy takes whatever is no array for a pickle, and says how to load that."""
    text = "it is missing" if isinstance(error, FileNotFoundError) else first_line(error)
    objects = re.search("pickle|object array|Python objects", text, re.IGNORECASE)
    return "it holds Python objects, no plain arrays" if objects else text


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


# The outputs of `torchport run`: saved and shown.


def check_output(path: str) -> None:
    target = Path(path)
    if target.suffix not in (".npz", ".npy"):
        raise SaveError(f"'{path}' is neither .npz nor .npy", next_step="name it out.npz")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise SaveError(f"the folder of '{path}' is missing or cannot be written", next_step="make it first")


def save(path: str, outputs: Mapping[str, Array]) -> None:
    """Write outputs to an ``.npz``, or a single one to an ``.npy``."""
    from torchport.inputs.samples import save_sample

    target = Path(path)
    if target.suffix == ".npz":
        save_sample(target, outputs)
        return
    if len(outputs) != 1:
        raise SaveError(f"there are {len(outputs)} outputs, a .npy holds one", next_step="name it out.npz")
    write_atomically(target, lambda part: _save_npy(part, next(iter(outputs.values()))))


def _save_npy(path: Path, array: Array) -> None:
    with open(path, "wb") as file:  # given a path, numpy would add a suffix
        np.save(file, array, allow_pickle=False)


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
