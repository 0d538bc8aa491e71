"""Where a model is to be saved: whether it can be, and what a refusal of the file system means."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from torchport.errors import SaveError

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
