"""One writer at a time in a folder, and what was written flushed to disk.

Windows can do neither with folders; `os.replace` keeps each file whole there anyway.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchport.errors import SaveError

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
