"""Find the user's own line behind a failure, a guard or a node."""

from __future__ import annotations

import dataclasses
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from types import CodeType, FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple({sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")})
_FRAMEWORKS = tuple(
    os.sep + os.path.join("site-packages", name) + os.sep
    for name in ("torch", "onnx", "onnxscript", "onnx_ir", "onnxruntime", "click")
)


def is_user_file(path: str) -> bool:
    """Whether a source file is the user's (or a model library's), not the machinery's."""
    if not path or path.startswith(("<", _PACKAGE + os.sep)):
        return False
    if any(part in path for part in _FRAMEWORKS):
        return False
    return not path.startswith(_LIBRARIES) or "site-packages" in path


def place(path: str, line: int | None) -> str:
    """``model.py:12``, relative where the file lies below the working folder."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return f"{path if relative.startswith('..') else relative}:{line}"


def line_of_error(error: BaseException) -> str:
    """The innermost line of the user's code an exception came through, with its text; empty if none."""
    found = _in_text(str(error))
    if found:
        return found
    chain: BaseException | None = error
    while chain is not None:
        found = _in_traceback(chain.__traceback__)
        if found:
            return found
        chain = chain.__cause__ or chain.__context__
    return ""


def _in_traceback(tb: TracebackType | None) -> str:
    return _last_user_frame(traceback.extract_tb(tb))


def _last_user_frame(frames: traceback.StackSummary) -> str:
    for frame in reversed(frames):
        if is_user_file(frame.filename):
            code = f": {frame.line}" if frame.line else ""
            return place(frame.filename, frame.lineno) + code
    return ""


def site_of_error(error: BaseException) -> Site | None:
    """The innermost place in the user's code an exception came through."""
    chain: BaseException | None = error
    while chain is not None:
        frames = [(f.f_code, line) for f, line in traceback.walk_tb(chain.__traceback__)]
        site = _site(reversed(frames))
        if site is not None:
            return site
        chain = chain.__cause__ or chain.__context__
    return None


def site_of_stack(frame: FrameType) -> Site | None:
    """The innermost place in the user's code that is running."""
    return _site((f.f_code, line) for f, line in traceback.walk_stack(frame))


def line_of_frame(frame: FrameType) -> str:
    """The innermost line of the user's code that is running, with its text; empty if none."""
    return _last_user_frame(traceback.extract_stack(frame))


def _site(frames: Iterable[tuple[CodeType, int]]) -> Site | None:
    own = [(code, line) for code, line in frames if is_user_file(code.co_filename)]
    return Site(tuple(code for code, _ in own), own[0][1]) if own else None


_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)(?:, in [^\n]*)?(?:\n +([^\n]+))?')


def _in_text(text: str) -> str:
    """torch quotes the user's stack in some messages."""
    for path, line, code in reversed(_FILE_LINE.findall(text)):
        if is_user_file(path):
            return place(path, int(line)) + (f": {code.strip()}" if code else "")
    return ""


def line_of_stack(stack: str) -> str:
    """The user's line in a quoted stack, as ``file.py:12``."""
    for path, line, _ in reversed(_FILE_LINE.findall(stack)):
        if is_user_file(path):
            return place(path, int(line))
    for path, line in re.findall(r"(?m)^(\S+?)\((\d+)\): ", stack):
        if is_user_file(path):
            return place(path, int(line))
    return ""


# A place in the user's code.


@dataclasses.dataclass(frozen=True)
class Site:
    """A line, and the code of the user's functions that led there, the innermost first."""

    codes: tuple[CodeType, ...]
    line: int
