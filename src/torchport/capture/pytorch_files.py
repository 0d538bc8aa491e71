"""PyTorch files, looked at before they are opened: what a `.pt` holds, and whether opening it could run code.

What a file is called says nothing about what is in it, so the content decides. TorchScript is read by
PyTorch's own C++ reader, which runs no Python; a pickle would, so it is opened only when the caller
vouches for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from torchport.capture.archive_members import Members, check_zip
from torchport.capture.exported_program_text import Refusal
from torchport.capture.torchscript_text import check_script
from torchport.errors import SourceError, UntrustedError, first_line

Kind = Literal["script", "program", "old program", "pickle"]

_TAR_MAGIC = b"ustar"
_SCRIPT_PICKLES = ("data.pkl", "constants.pkl")


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
        raise SourceError(f"{path.name} is not a regular file", where=str(path), next_step="give the path of a file")
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
    if "constants.pkl" in {name.lower() for name in inner}:  # torch's reader takes any spelling for it
        return "script"
    if "archive_format" in inner or any(name.startswith("models/") for name in inner):
        return "program"
    if "serialized_exported_program.json" in names:
        return "old program"
    if "data.pkl" in inner:
        return "pickle"
    raise SourceError(
        f"{path.name} is a zip archive, but not one that PyTorch wrote",
        where=str(path),
        next_step="give a file of torch.save, torch.jit.save or torch.export.save",
    )


def load_script(path: Path, *, trust: bool = False) -> Any:
    """Return the TorchScript module in `path`.

    Its code is interpreted, not Python, but operators can write and read files, and a `__setstate__` runs while
    the file is being opened. So without trust every member has to have a name that torch writes, and the code
    may use only what `script_text` and `operator_safety` know to be harmless.

    Raises:
        UntrustedError: it has another member, or uses something else.
        SourceError: it is broken, or cannot be opened.
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
    """Check every member that torch will read, by the reader it will read it with."""
    members = Members(path)
    members.hold_to("script")
    try:
        check_script(_script_sources(members), {name: members.read(name) for name in _SCRIPT_PICKLES})
    except Refusal as reason:
        raise UntrustedError(
            f"{path.name} holds TorchScript that may do more than compute: {reason}",
            where=str(path),
            next_step="give the model as file.py:object; or, if you know who made the file, pass --trust",
        ) from reason
    except ValueError as error:
        raise members.broken(first_line(error)) from error


def _script_sources(members: Members) -> dict[str, str]:
    return {name: members.read(name).decode() for name in members.names if _is_source(name)}


def _is_source(name: str) -> bool:
    return name.startswith("code/") and name.endswith(".py")


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
    if isinstance(value, torch.Tensor):
        raise SourceError(
            f"{path.name} holds one tensor of shape {list(value.shape)}, which is no model",
            where=str(path),
            next_step=f"give the model; the tensor as an input: --input x={path.name}",
        )
    if isinstance(value, Mapping):
        raise _holds_weights(path, value)
    raise SourceError(
        f"{path.name} holds a {type(value).__name__}, which is no model",
        where=str(path),
        next_step="save the nn.Module's state dict or a TorchScript model, and give that file",
    )


def _unpickle(path: Path) -> Any:
    import torch

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the classes it was made of are looked for by name
    try:
        with quiet():
            return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise SourceError(
            f"{path.name} cannot be unpickled: {first_line(error)}",
            where=str(path),
            next_step="save it again with torch.export.save or torch.jit.save, which need no pickled classes",
        ) from error


def _weights_in(path: Path) -> Any:
    """What the file holds if that is weights, else None."""
    try:
        return load_weights(path, mmap=zipfile.is_zipfile(path))
    except Exception:  # noqa: BLE001 -- a hostile pickle may raise anything; the answer is the same
        return None


def _holds_weights(path: Path, value: Any) -> SourceError:
    found = _state_dict(value)
    keys = "" if found is None else "".join(f"[{key!r}]" for key in found[0])
    inside = "" if not keys else f" in {keys}"
    count = "" if found is None else f" ({len(found[1])} entries{inside})"
    others = f", beside {', '.join(map(repr, list(value)[:6]))}" if keys and len(value) > 1 else ""
    rename = "" if found is None else _prefix_advice(found[1])
    return SourceError(
        f"{path.name} holds weights only{count}{others}: the model's code is not in it",
        where=str(path),
        next_step="write a function that builds the model, calls model.load_state_dict("
        f"torch.load({path.name!r}, map_location='cpu', weights_only=True){keys}) and returns it, "
        f"and give file.py:function{rename}",
    )


def _state_dict(value: Any, depth: int = 3) -> tuple[list[Any], Mapping[Any, Any]] | None:
    """Return the largest state dict in what `torch.save` was given, and the keys that lead to it.

    Checkpoints of training frameworks hold it beside an optimizer's state, as ``checkpoint["state_dict"]``.
    """
    import torch

    if not isinstance(value, Mapping) or depth < 0:
        return None
    if value and all(isinstance(item, torch.Tensor) for item in value.values()):
        return [], value
    inner = [(key, _state_dict(item, depth - 1)) for key, item in value.items() if "optim" not in str(key).lower()]
    found = [([key, *path[0]], path[1]) for key, path in inner if path is not None]
    return max(found, key=lambda one: len(one[1])) if found else None


def _prefix_advice(state: Mapping[Any, Any]) -> str:
    """Say that a wrapper of training has put a word before every name."""
    for prefix in ("module.", "_orig_mod.", "model."):
        if state and all(str(name).startswith(prefix) for name in state):
            return f"; every name begins with {prefix!r}, which a wrapper may have added: take it off with removeprefix"
    return ""


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
