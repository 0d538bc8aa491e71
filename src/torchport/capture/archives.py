"""PyTorch files, looked at before they are opened: what a `.pt` holds, and whether opening it could run code.

What a file is called says nothing about what is in it, so the content decides. TorchScript is read by
PyTorch's own C++ reader, which runs no Python; a pickle would, so it is opened only when the caller
vouches for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, Literal

from torchport.errors import SourceError, UntrustedError

Kind = Literal["script", "program", "old program", "pickle"]

# torch stores members uncompressed: an honest archive unpacks to its own size, a re-packed one to a few times
_GROWTH = 8
_SLACK = 64 << 20
_TAR_MAGIC = b"ustar"
_FILE_OPERATORS = re.compile(r"\b(?:save|from_file)\b")
_PLAIN_GETATTR = re.compile(r'\bgetattr\((?:\([\w.]+\)|\w)[\w.]*, "(\w+)"\)')


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's warnings and log lines from the user while a file is opened.

    Not `silence`: what the user's own code prints while a trusted file is opened is not noise.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def only_weights() -> Iterator[None]:
    """Let no `torch.load` inside torch fall back to a full unpickling, whatever its caller asked for.

    `torch.export` tries `weights_only=True` and on failure unpickles in full; torch's own switch forbids it.
    """
    switches = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: os.environ.pop(name, None) for name in switches}
    os.environ[switches[0]] = "1"
    try:
        yield
    finally:
        del os.environ[switches[0]]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def load_weights(file: Path | IO[bytes], *, mmap: bool | None = None) -> Any:
    """What a file of `torch.save` holds. Runs nothing: what is more than tensors and plain containers raises."""
    import torch

    with quiet(), only_weights():
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


def kind_of(path: Path) -> Kind:
    """What the file holds, told from its bytes alone.

    Raises:
        SourceError: it is empty, cut short, a bomb, or no PyTorch file at all.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise SourceError(f"{path.name} is not a regular file", where=str(path))
    if zipfile.is_zipfile(path):
        return _kind_of_zip(path)
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(b"\x80") or head[257:262] == _TAR_MAGIC:
        return "pickle"
    raise SourceError(
        f"{path.name} {_guess(head)}",
        where=str(path),
        next_step="give file.py:object, a TorchScript .pt or a .pt2; or download or copy the file again",
    )


def _guess(head: bytes) -> str:
    if not head:
        return "is empty"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself (git lfs pull fetches it)"
    if head.startswith(b"PK"):
        return "is a zip archive that was cut short"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "is a web page, not a PyTorch file"
    return "is no PyTorch file"


def _kind_of_zip(path: Path) -> Kind:
    names = check_zip(path)
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "script"
    if "archive_format" in inner or any(name.startswith("models/") for name in inner):
        return "program"
    if "serialized_exported_program.json" in names:
        return "old program"
    if "data.pkl" in inner:
        return "pickle"
    raise SourceError(f"{path.name} is a zip archive, but not one that PyTorch wrote", where=str(path))


def check_zip(file: Path | IO[bytes], *, where: str = "") -> list[str]:
    """The members' names, once the archive is known to be bounded and to stay inside itself.

    Two members of one name are refused, upper and lower case being the same to torch's reader: a check that
    reads one of them would say nothing about the other.

    Raises:
        SourceError: it unpacks to far more than it is, a name climbs out or comes twice, or it is broken.
    """
    where = where or str(file)
    label = Path(where).name
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise SourceError(f"{label} is a broken zip archive: {error}", where=where) from error
    if climbing := [m.filename for m in members if _climbs(m.filename)]:
        raise SourceError(f"{label} has a member that climbs out of the archive: {climbing[0]!r}", where=where)
    if len({m.filename.casefold() for m in members}) != len(members):
        raise SourceError(f"{label} has two members of the same name", where=where)
    total = sum(m.file_size for m in members)
    if total > _GROWTH * _size(file) + _SLACK:
        raise SourceError(f"{label} would unpack to {total:,} bytes: far more than it is", where=where)
    return [m.filename for m in members]


def _climbs(name: str) -> bool:
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    return ".." in parts or name.startswith(("/", "\\")) or bool(PureWindowsPath(name).drive) or "\0" in name


def _size(file: Path | IO[bytes]) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.seek(0, os.SEEK_END)


def load_script(path: Path, *, trust: bool = False) -> Any:
    """The TorchScript module in `path`.

    Its code is interpreted, not Python, but some of its operators write and read files, and a `__setstate__`
    runs while the file is being opened: such a file wants trust.
    """
    import torch

    if not trust:
        _check_script(path)
    try:
        with quiet():
            return torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call,unused-ignore]
    except Exception as error:
        raise SourceError(
            f"{path.name} cannot be opened as TorchScript: {first_line(error)}",
            where=str(path),
            next_step="save it again with torch.jit.save, by a PyTorch not newer than this one",
        ) from error


def _check_script(path: Path) -> None:
    for name, text in _script_sources(path):
        plain = _without_getattr(text)
        if found := _FILE_OPERATORS.search(plain) or re.search(r"\bgetattr\b", plain):
            raise UntrustedError(
                f"{path.name} holds TorchScript that may read or write files ('{found.group()}' in {name})",
                where=str(path),
                next_step="if you know who made the file, pass --trust",
            )


def _script_sources(path: Path) -> Iterator[tuple[str, str]]:
    """Each source file, read by the reader that will also load it."""
    import torch

    try:
        reader = torch._C.PyTorchFileReader(str(path))
        for name in reader.get_all_records():
            if name.startswith("code/") and not name.endswith(".debug_pkl"):
                yield name, reader.get_record(name).decode()
    except (RuntimeError, UnicodeDecodeError) as error:
        raise SourceError(f"{path.name} is a broken TorchScript file: {first_line(error)}", where=str(path)) from error


def _without_getattr(text: str) -> str:
    """Take out `getattr(self, "0")`, nested ones too, but keep the names it reads."""
    names: list[str] = []
    for _ in range(50):
        names += _PLAIN_GETATTR.findall(text)
        text, count = _PLAIN_GETATTR.subn("_", text)
        if not count:
            break
    return text + "\n" + " ".join(names)


def load_pickle(path: Path, *, trust: bool = False) -> Any:
    """The module pickled in `path`, if the caller vouches for the file.

    Raises:
        UntrustedError: unpickling would run what the file asks for, and nobody vouched for it.
        SourceError: it holds weights only, or something that is no model.
    """
    import torch

    value = _weights_in(path)
    if value is None:
        if not trust:
            raise _is_pickled(path)
        value = _unpickle(path)
    if isinstance(value, torch.nn.Module):
        return value
    if isinstance(value, torch.Tensor | Mapping):
        raise _holds_weights(path, value)
    raise SourceError(f"{path.name} holds a {type(value).__name__}, which is no model", where=str(path))


def _unpickle(path: Path) -> Any:
    import torch

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the classes it was made of are looked for by name
    try:
        with quiet():
            return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise SourceError(f"{path.name} cannot be unpickled: {first_line(error)}", where=str(path)) from error


def _weights_in(path: Path) -> Any:
    """What the file holds if that is weights, else None."""
    try:
        return load_weights(path, mmap=zipfile.is_zipfile(path))
    except Exception:  # noqa: BLE001 -- a hostile pickle may raise anything; the answer is the same
        return None


def _holds_weights(path: Path, value: Any) -> SourceError:
    count = f" ({len(value)} entries)" if isinstance(value, Mapping) else ""
    return SourceError(
        f"{path.name} holds weights only{count}: the model's code is not in it",
        where=str(path),
        next_step="write a function that builds the model and calls "
        f"model.load_state_dict(torch.load({path.name!r}, weights_only=True)), and give file.py:function",
    )


def _is_pickled(path: Path) -> UntrustedError:
    names = _foreign_names(path)
    return UntrustedError(
        f"{path.name} is a pickled object: opening it runs whatever code it asks for"
        + (f" ({names})" if names else ""),
        where=str(path),
        next_step="save its state_dict() and give file.py:function that builds the model; "
        "or, if you know who made the file, pass --trust",
    )


def _foreign_names(path: Path) -> str:
    import torch

    try:
        with quiet():
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # noqa: BLE001 -- only adds detail to an error that is raised anyway
        return ""
    return ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")


def first_line(error: BaseException) -> str:
    """An exception in one line, for messages; the whole of it stays chained."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
