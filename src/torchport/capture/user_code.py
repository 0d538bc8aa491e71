"""Run the user's own Python, and when it fails show the user's own lines, not ours.

A file is imported under a private name of its own, so that two files called `model.py` do not get in each
other's way, and is registered in `sys.modules`, so that dataclasses, pickle and `inspect.getsource` work in
it. Its folder goes to the front of `sys.path` and stays there: models import their siblings late, too,
inside `forward`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from torchport.capture.blame import is_user_file
from torchport.errors import SourceError, TorchportError

_PACKAGE = str(Path(__file__).resolve().parents[1])
_numbers = itertools.count(1)


def import_file(path: Path) -> ModuleType:
    """The file as a module, under a name no other module has."""
    path = path.resolve()
    _put_first(str(path.parent))
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    name = f"_torchport_source_{next(_numbers)}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path.name} is not a Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with running_user_code(f"importing {path.name} failed"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_name(name: str, spec: str) -> ModuleType:
    """The module of that dotted name, the current folder being searched first."""
    _put_first(os.getcwd())
    importlib.invalidate_caches()
    with running_user_code(f"importing {name} failed"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and f"{name}.".startswith(f"{error.name}."):
                raise SourceError(
                    f"there is no module or file '{error.name}'",
                    where=spec,
                    next_step="give file.py:object, or go to the folder that holds the package",
                ) from error
            raise


def _put_first(folder: str) -> None:
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)


@contextlib.contextmanager
def running_user_code(failure: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn whatever the user's code raises, `SystemExit` included, into a `SourceError` with their traceback.

    Args:
        failure: what failed, e.g. ``importing model.py failed``.
        passing: exceptions that the caller handles itself.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, TorchportError, *passing)):
            raise
        raise _theirs(failure, error) from error


def _theirs(failure: str, error: BaseException) -> SourceError:
    told = traceback.TracebackException.from_exception(error)
    where = _last_line(told)
    _strip(told)
    kind = type(error).__name__
    text = str(error).strip().splitlines()
    lines = "".join(told.format()).rstrip()
    return SourceError(
        f"{failure}: {kind}" + (f": {text[0]}" if text else "") + f"\n{lines}",
        where=where,
        next_step=_advice(error),
    )


def _last_line(told: traceback.TracebackException) -> str | None:
    if getattr(told, "lineno", None):  # a SyntaxError: its frames are ours, its place is theirs
        return f"{told.filename}:{told.lineno}"
    frames = [f for f in told.stack if is_user_file(f.filename)] or [f for f in told.stack if not _is_ours(f)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _strip(told: traceback.TracebackException | None) -> None:
    """Take our frames and importlib's out, through the whole chain of causes."""
    while told is not None:
        told.stack = traceback.StackSummary.from_list([f for f in told.stack if not _is_ours(f)])
        told = told.__cause__ or told.__context__


def _is_ours(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    return name.startswith((_PACKAGE + os.sep, "<frozen importlib")) or name == importlib.__file__


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "the file is part of a package: give it as package.module:object, from the folder above"
    if isinstance(error, ModuleNotFoundError):
        return f"install '{error.name}', or run torchport in the environment that has it"
    if isinstance(error, SystemExit):
        return "the file ends the program: put its main part under if __name__ == '__main__':"
    return "make the file run under plain python first"
