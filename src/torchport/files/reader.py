"""The content of an ONNX file, which may be anything: read only if it can be one, and parsed.

Files of other formats that are given under the name of an ONNX file are told by how they begin.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from torchport.errors import FileError
from torchport.files.writer import PROTOBUF_LIMIT

# What protobuf's implementations raise: the one in C, and the one in Python, which some packages switch to.
UNREADABLE = (DecodeError, UnicodeDecodeError)

_PICKLE = ("a pickle", "export the PyTorch model: torchport export")

# How files begin, and what to do about each
_OTHERS = {
    b"version https://git-lfs": ("a pointer of Git LFS", "run `git lfs pull` to get the file itself"),
    b"PK\x03\x04": ("a zip archive or PyTorch checkpoint", "export it: torchport export"),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), _PICKLE),
    b"\x1f\x8b": ("a gzip archive", "unpack it first"),
    b"GGUF": ("a GGUF file", "give an ONNX file"),
    b"\x89HDF": ("an HDF5 file", "give an ONNX file"),
    b"{": ("JSON text", "give an ONNX file in protobuf format"),
    b"<": ("an HTML or XML page", "download the file itself, not the page about it"),
}


def read(source: Path) -> bytes:
    """The file's content, if it is a plain file of a possible size. A pipe would have us wait for ever.

    Raises:
        FileError: it is missing, empty, too large or no plain file.
    """
    try:
        _check_kind(os.stat(source), source)
        handle = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            _check_kind(os.fstat(handle), source)  # it may have been exchanged meanwhile
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(
            f"cannot be opened: {reason}", where=str(source), next_step="check the path and its permissions"
        ) from error


def _check_kind(status: os.stat_result, source: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FileError("not a file", where=str(source), next_step="give the path of an .onnx file")
    if not status.st_size:
        raise FileError("the file is empty", where=str(source), next_step="export or download it again")
    if status.st_size > PROTOBUF_LIMIT:
        raise FileError(
            f"the file has {status.st_size:,} bytes, protobuf allows {PROTOBUF_LIMIT:,}",
            where=str(source),
            next_step="export the model again with its weights in a data file",
        )


def parse(content: bytes, source: Path) -> ModelProto:
    """The protobuf message that `source` was found to hold; nothing in it is checked yet.

    Raises:
        FileError: it is of another format, or cut short.
    """
    head = content[:64].lstrip()
    for start, (kind, advice) in _OTHERS.items():
        if head.startswith(start):
            raise FileError(f"{kind}, not an ONNX model", where=str(source), next_step=advice)
    try:
        return ModelProto.FromString(content)
    except UNREADABLE as error:
        raise FileError(
            "not an ONNX model, cut short, or nested too deeply",
            where=str(source),
            next_step="export or download it again",
        ) from error
