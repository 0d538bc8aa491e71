"""Locks, flushing to disk, and checks that a path can be written and has the space."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchport.errors import SaveError

# One writer at a time in a folder, and what was written flushed to disk.
#
# Windows can do neither with folders; `os.replace` keeps each file whole there anyway.

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None
_LOCK_SECONDS = 60.0


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one writer at a time change what is in the folder; the lock ends with the process that holds it.

    Raises:
        SaveError: another program has held the lock for a minute.
    """
    with opened(folder) as handle:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not try_lock(handle):
            if time.monotonic() > deadline:
                raise SaveError(
                    f"another program has kept the folder locked for {_LOCK_SECONDS:.0f} s",
                    where=str(folder),
                    next_step="end that program, or give a path in another folder",
                )
            time.sleep(0.01)
        yield


def try_lock(handle: int | None) -> bool:
    """Whether the lock was free, or the file system has none."""
    if handle is None or fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int | None]:
    """A handle of the folder, by which it can be locked and flushed; None where there is no such thing."""
    handle = None if os.name == "nt" else os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flush which names are in the folder."""
    with opened(folder) as handle:
        if handle is not None:
            os.fsync(handle)


def sync(file: Any) -> None:
    """Flush a file's content."""
    file.flush()
    os.fsync(file.fileno())


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it there: readers see the old content or the new.

    Raises:
        SaveError: the file cannot be written; what was there stays.

    Example:
        >>> write_atomically("table.csv", lambda part: part.write_text(text))
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        write(part)
        os.replace(part, target)
    except OSError as error:
        raise SaveError(
            f"'{path}' cannot be written: {error.strerror or error}",
            next_step="choose another path, or free space and check permissions",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


# Where a model is to be saved: whether it can be, and what a refusal of the file system means.

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PERMIT = "change its permissions, or give another path"


def check_target(path: str | os.PathLike[str]) -> Path:
    """Say early, before long work, whether a file can be written at `path`.

    Raises:
        SaveError: the folder is missing or cannot be written, or something that is no file is in the way.
    """
    target = Path(path)
    try:
        folder = os.stat(target.parent).st_mode
        writable = os.access(target.parent, os.W_OK | os.X_OK)
        in_the_way = not target.name or _in_the_way(target)
    except (OSError, ValueError) as error:
        raise SaveError(
            f"the folder '{target.parent}' cannot be used: {getattr(error, 'strerror', error)}",
            where=str(target),
            next_step="create the folder, or give another path",
        ) from error
    if not stat.S_ISDIR(folder) or in_the_way:
        raise SaveError("no file can be written here", where=str(target), next_step="give a path such as model.onnx")
    if shutil.disk_usage(target.parent).total == 0:
        raise SaveError(
            f"the folder '{target.parent}' keeps no files: it is not on a disk",
            where=str(target),
            next_step="give another path",
        )
    if not writable:
        raise SaveError(
            f"the folder '{target.parent}' cannot be written to",
            where=str(target),
            next_step=_PERMIT,
        )
    return target


def _in_the_way(target: Path) -> bool:
    """Whether a folder or device has the name; a link is replaced, never written through."""
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or target.is_dir()


def check_space(target: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    if shutil.disk_usage(target.parent).free < needed:
        raise _full(target, needed)


def explain(error: OSError, target: Path, needed: int) -> SaveError:
    """What the operating system's refusal means to someone saving a model."""
    if error.errno in _FULL:
        return _full(target, needed)
    advice = _PERMIT if error.errno in _NOT_WRITABLE else "give another path"
    return SaveError(
        f"cannot be written: {error.strerror or error}",
        where=str(target),
        next_step=f"{advice}; nothing was changed",
    )


def _full(target: Path, needed: int) -> SaveError:
    free = shutil.disk_usage(target.parent).free
    return SaveError(
        f"not enough space: {needed:,} bytes are needed, {free:,} are free",
        where=str(target),
        next_step="free some space or a quota, or give a path on another disk; nothing was changed",
    )
