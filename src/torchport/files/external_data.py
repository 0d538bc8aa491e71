"""Checks every tensor of an ONNX file before one byte of it is used.

A model file may come from anywhere. Its external data names files, offsets and lengths, and a library that
believes them reads `/etc/passwd` into the weights (CVE-2022-25882, CVE-2024-5187, CVE-2026-34446) or asks for
a terabyte of memory. So each claim is held against the file system first, and no data is read for it.

    >>> check_external(onnx.load("model.onnx", load_external_data=False), Path("."))
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx
import onnx_ir as ir
from onnx import ModelProto, SparseTensorProto, TensorProto

from torchport.errors import FileError, UnsafeFileError
from torchport.irtools.serialization import proto_tensors

_KEYS = ("location", "offset", "length", "checksum")
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_LONGEST_PART = 255  # what file systems take
_MOST_DIMS = 64  # what numpy takes
_MOST_BYTES = 2**63 - 1
_DISTRUST = "do not use this file; get it again from a source you trust"


def check_external(proto: ModelProto, folder: Path, *, source: Path | None = None) -> None:
    """Refuse a model with a tensor that reaches outside `folder` or lies about its size.

    Args:
        proto: the model, its external data not loaded.
        folder: where external data is looked for: the folder the model file is in.
        source: the model file, to be named in errors.

    Raises:
        UnsafeFileError: a path leaves the folder or is a link or device; a size cannot be true.
        FileError: a data file is missing, or a data type unknown.
    """
    files = _DataFiles(folder)
    for tensor in proto_tensors(proto):
        _check(tensor, files, f"{source or folder}, tensor '{_name(tensor)}'")


def data_errors(proto: ModelProto, folder: Path | None) -> Iterator[tuple[str, FileError]]:
    """What `check_external` would refuse, all of it: the tensor's name and the error.

    Args:
        proto: the model, its external data not loaded.
        folder: where external data is looked for; None to leave external data alone.
    """
    files = _DataFiles(folder or Path())
    for tensor in proto_tensors(proto):
        outside = isinstance(tensor, TensorProto) and tensor.data_location == TensorProto.EXTERNAL
        try:
            if folder is not None or not outside:
                _check(tensor, files, "")
        except FileError as error:
            yield _name(tensor), error


def _check(tensor: TensorProto | SparseTensorProto, files: _DataFiles, where: str) -> None:
    if isinstance(tensor, SparseTensorProto):
        _count(tensor.dims, where)
    elif tensor.data_location == TensorProto.EXTERNAL:
        _check_outside(tensor, files, where)
    else:
        _check_inside(tensor, where)


def _name(tensor: TensorProto | SparseTensorProto) -> str:
    return str(tensor.values.name if isinstance(tensor, SparseTensorProto) else tensor.name)


def _count(dims: Any, where: str) -> int:
    """How many elements `dims` claim; zeros do not hide the others, numpy multiplies those all the same."""
    if len(dims) > _MOST_DIMS or any(d < 0 for d in dims):
        raise UnsafeFileError(f"the shape {_short(list(dims))} cannot be meant", where=where, next_step=_DISTRUST)
    if math.prod(d for d in dims if d) > _MOST_BYTES // 16:
        raise UnsafeFileError(f"the shape {_short(list(dims))} is too large", where=where, next_step=_DISTRUST)
    return math.prod(dims)


def _dtype(tensor: TensorProto, where: str) -> ir.DataType:
    if tensor.data_type == TensorProto.UNDEFINED or tensor.data_type not in TensorProto.DataType.values():
        raise FileError(
            f"data type {tensor.data_type} is unknown",
            where=where,
            next_step="if the file is newer than the installed onnx, upgrade onnx; otherwise it is broken",
        )
    return ir.DataType(tensor.data_type)


def _check_inside(tensor: TensorProto, where: str) -> None:
    """The data in the file itself is as much as the shape says, given once."""
    count, dtype = _count(tensor.dims, where), _dtype(tensor, where)
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    wanted, found = _entries(dtype, count), len(getattr(tensor, field))
    if tensor.HasField("raw_data"):
        field, wanted, found = (
            "raw_data",
            -1 if dtype == ir.DataType.STRING else _bytes(dtype, count),
            len(tensor.raw_data),
        )
    strays = [f for f in _FIELDS if f != field and len(getattr(tensor, f))]
    if wanted != found or strays:
        raise UnsafeFileError(
            f"the shape {_short(list(tensor.dims))} of {dtype.name} does not fit the data in the file",
            where=where,
            next_step=_DISTRUST,
        )


def _entries(dtype: ir.DataType, count: int) -> int:
    """How many entries of its typed field `count` elements take (onnx.proto: small ones share an entry)."""
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return 2 * count
    if dtype == ir.DataType.STRING or dtype.bitwidth >= 6:
        return count
    return _bytes(dtype, count)


def _bytes(dtype: ir.DataType, count: int) -> int:
    return -(-count * dtype.bitwidth // 8)


def _check_outside(tensor: TensorProto, files: _DataFiles, where: str) -> None:
    """The piece of the data file the tensor claims is there, and is as long as its shape says."""
    entries = _external_entries(tensor, where)
    size = files.size(entries.get("location", ""), where)
    dtype = _dtype(tensor, where)
    if dtype == ir.DataType.STRING or any(len(getattr(tensor, f)) for f in (*_FIELDS, "raw_data")):
        raise UnsafeFileError("its data is both inside and outside the file", where=where, next_step=_DISTRUST)
    wanted = _bytes(dtype, _count(tensor.dims, where))
    offset = _number(entries.get("offset", "0"), where)
    length = _number(entries["length"], where) if "length" in entries else wanted
    if length != wanted:
        raise UnsafeFileError(
            f"{_short(list(tensor.dims))} of {dtype.name} takes {wanted} bytes, its length says {length}",
            where=where,
            next_step=_DISTRUST,
        )
    if offset + length > size:
        raise UnsafeFileError(
            f"its data should end at byte {offset + length}, '{entries['location']}' ends at {size}",
            where=where,
            next_step="the data file is cut short or belongs to another model; copy both files again",
        )


def _external_entries(tensor: TensorProto, where: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key not in _KEYS or entry.key in entries:
            kind = "duplicate" if entry.key in entries else "unknown"
            raise UnsafeFileError(
                f"{kind} key {_short(entry.key)} in its external data", where=where, next_step=_DISTRUST
            )
        entries[entry.key] = entry.value
    return entries


def _number(text: Any, where: str) -> int:
    """A size written in plain digits; int() would also take '-1', ' 1', '1_0' and digits of other scripts."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 19):
        raise UnsafeFileError(f"{_short(text)} is no offset or length", where=where, next_step=_DISTRUST)
    return int(text)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _DataFiles:
    """Sizes of the data files in a folder, each file looked at once however many tensors name it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Any, int] = {}

    def size(self, location: Any, where: str) -> int:
        if location not in self._sizes:
            self._sizes[location] = self._look(_parts(location, where), where)
        return self._sizes[location]

    def _look(self, parts: tuple[str, ...], where: str) -> int:
        """The size of the regular file at the end of `parts`, with no link on the way to it."""
        path = self._folder
        for part in parts[:-1]:
            path = path / part
            _want(path, stat.S_ISDIR, where)
        found = _want(path / parts[-1], stat.S_ISREG, where)
        if found.st_nlink > 1:
            raise UnsafeFileError(
                f"the data file '{'/'.join(parts)}' is a hard link: it may be any file of this disk",
                where=where,
                next_step="replace it by a copy (cp --remove-destination) if you trust it",
            )
        return found.st_size


def _want(path: Path, kind: Any, where: str) -> os.stat_result:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileError(
            f"the data file '{path}' is missing",
            where=where,
            next_step="put the model's data file beside it, under the name the model was saved with",
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFileError(
            f"'{path}' is a symbolic link",
            where=where,
            next_step="replace it by a copy of the file it points to, if you trust that file",
        )
    if not kind(found.st_mode):
        raise UnsafeFileError(f"'{path}' is no plain file or folder", where=where, next_step=_DISTRUST)
    return found


def _parts(location: Any, where: str) -> tuple[str, ...]:
    """The components of a relative path that is harmless on this system and on Windows."""
    if not isinstance(location, str) or not location or "\0" in location or "_ORT_MEM_ADDR_" in location:
        raise UnsafeFileError(f"{_short(location)} is no file name", where=where, next_step=_DISTRUST)
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if posix.root or windows.root or windows.drive or ".." in (*posix.parts, *windows.parts):
        raise UnsafeFileError(
            f"its data {_short(location)} lies outside the model's folder", where=where, next_step=_DISTRUST
        )
    if not posix.parts or any(len(os.fsencode(part)) > _LONGEST_PART for part in posix.parts):
        raise UnsafeFileError(f"{_short(location)} is no file name", where=where, next_step=_DISTRUST)
    return posix.parts
