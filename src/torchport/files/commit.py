"""Moves a model into place so that a crash, a full disk or a second writer leaves the old one or the new, never a mix.

Everything is written and flushed in a hidden folder beside the target (the same disk, so moving is atomic).
Then the data file, named by its content, is moved into place, where nothing refers to it yet; then the
`.onnx`, the one moment the new model begins to exist. Before that the hidden folder notes which data files will be
nobody's, the new one if it comes to nothing and the old one if it succeeds: whoever writes there after a crash removes
those that are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from onnx import ModelProto, TensorProto

from torchport.files.filesystem import CAN_LOCK, locked, opened, sync_folder, try_lock
from torchport.files.reader import UNREADABLE
from torchport.files.writer import PROTOBUF_LIMIT, Draft
from torchport.irtools.serialization import proto_tensors

_SUFFIX = ".torchport"
_NOTES = "nobodys"


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` to work in, gone afterwards whatever happens.

    It is locked while in use. One without a lock was left by a process that was killed, and is removed.
    """
    prefix = f".{target.name}."
    with contextlib.ExitStack() as stack:
        with locked(target.parent):
            _sweep(target, prefix)
            folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix, suffix=_SUFFIX))
            handle = stack.enter_context(opened(folder))
            try_lock(handle)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _sweep(target: Path, prefix: str) -> None:
    if not CAN_LOCK:
        return
    for entry in list(os.scandir(target.parent)):
        left = entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX)
        if left and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError), opened(Path(entry.path)) as handle:  # its writer just ended
                if try_lock(handle):
                    _remove_nobodys(Path(entry.path), target)
                    shutil.rmtree(entry.path, ignore_errors=True)


def _remove_nobodys(left: Path, target: Path) -> None:
    """Remove the data files that a killed writer noted, but for those that a model in the folder needs."""
    with contextlib.suppress(OSError):  # no notes, or no permission: what is left over harms nobody
        noted = (left / _NOTES).read_text().split("\n")
        for name in _data_files(target) & set(noted):
            if not _mentioned(name, [target, *_others(target)]):
                os.unlink(target.parent / name)


def commit(draft: Draft, target: Path, *, before_removal: Callable[[Path], None]) -> None:
    """Move a draft to where it belongs, and remove the data file only the model it replaces needed.

    Args:
        draft: the model, flushed to disk.
        target: where its `.onnx` goes; the data file goes beside it.
        before_removal: called with each old data file before it is removed.
    """
    with contextlib.suppress(FileNotFoundError):
        shutil.copymode(target, draft.onnx)
    with locked(target.parent):
        new = {draft.data.name} if draft.data else set()
        old = _data_names(target) - new
        (draft.onnx.parent / _NOTES).write_text("\n".join(sorted(old | new)))
        _move(draft, target)
        for name in sorted(old):
            with contextlib.suppress(OSError):  # the new model is there; what is left over harms nobody
                if not _mentioned(name, _others(target)):
                    before_removal(target.parent / name)
                    os.unlink(target.parent / name)


def _move(draft: Draft, target: Path) -> None:
    fresh = None
    try:
        if draft.data is not None:
            data = target.parent / draft.data.name
            fresh = None if os.path.lexists(data) else data
            os.replace(draft.data, data)
            sync_folder(target.parent)
        os.replace(draft.onnx, target)
    except BaseException:
        if fresh is not None and draft.onnx.exists():  # not committed: nothing refers to the data
            fresh.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _data_names(target: Path) -> set[str]:
    """The data files of the model at `target` that bear the names given here, if there is such a model."""
    present = _data_files(target)
    if not present or not target.is_file() or target.stat().st_size > PROTOBUF_LIMIT:
        return set()
    try:
        proto = ModelProto.FromString(target.read_bytes())
    except UNREADABLE:
        return set()
    outside = (
        t for t in proto_tensors(proto) if isinstance(t, TensorProto) and t.data_location == TensorProto.EXTERNAL
    )
    return present & {e.value for t in outside for e in t.external_data if e.key == "location"}


def _data_files(target: Path) -> set[str]:
    """The files in the folder that bear the names given here to the data of a model at `target`."""
    ours = re.compile(re.escape(target.stem) + r"\.[0-9a-f]{16}\.data")
    return {entry.name for entry in os.scandir(target.parent) if ours.fullmatch(entry.name)}


def _others(target: Path) -> list[Path]:
    return [p for p in target.parent.glob("*.onnx") if p.name != target.name]


def _mentioned(name: str, models: list[Path]) -> bool:
    """Whether one of the models, a copy of an old one say, needs the data file."""
    return any(_holds(model, name.encode()) for model in models if model.is_file())


def _holds(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0
