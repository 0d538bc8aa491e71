"""Find the user's own line behind a failure, a guard or a node."""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

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


class _Guards(logging.Handler):
    """Notes where torch.export fixes a symbolic size: it logs that while the user's code is on the stack."""

    _FIXED = re.compile(r"eval Eq\((?:[a-z]\d+|[^,]*), ?[^)]*\) \[guard added\]")

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._FIXED.match(record.getMessage()):
            frame: FrameType | None = sys._getframe()
            line = _last_user_frame(traceback.extract_stack(frame))
            if line and line not in self.lines:
                self.lines.append(line)


@contextmanager
def watch_guards() -> Iterator[list[str]]:
    """Collect the user's lines at which torch.export fixes sizes. Costs time: for use after the fact only."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    handler = _Guards()
    others, level, propagate, disabled = (
        logger.handlers[:],
        logger.level,
        logger.propagate,
        logging.root.manager.disable,
    )
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    try:
        yield handler.lines
    finally:
        logging.disable(disabled)
        logger.handlers, logger.propagate = others, propagate
        logger.setLevel(level)
