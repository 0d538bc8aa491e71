"""Changes of the whole process: output silenced, variables kept, memory handed back, garbage collection paused; and a
limit of time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from torchport.errors import TimeLimitError


@contextlib.contextmanager
def silence(*, verbose: bool = False) -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings instead of showing them; drop prints and log lines.

    Args:
        verbose: let prints and log lines through (warnings are still collected).
    """
    before = logging.root.manager.disable
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if verbose:
            yield caught
            return
        logging.disable(logging.CRITICAL)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield caught
        finally:
            logging.disable(before)


@contextlib.contextmanager
def silence_native() -> Iterator[None]:
    """Drop what C++ code prints: Python's redirection does not reach it, the file descriptors do."""
    saved = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """Undo changes of the environment variables: a package may set some when it is imported."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# Memory given back between stages, so that the peak is that of the largest one; and garbage left alone for a while.


def release() -> None:
    """Hand free heap pages back to the system. glibc keeps them otherwise; elsewhere this does nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """A large model is made of a million objects, none of them garbage: to look for some takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# A limit of time. It is looked at where a capture spends its time; nothing is interrupted.

_end: ContextVar[float] = ContextVar("end", default=math.inf)


@contextlib.contextmanager
def time_limit(end: float) -> Iterator[None]:
    """Let `check_time` raise once this thread has computed for so long in all, by `time.thread_time`."""
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def check_time() -> None:
    """Raise TimeLimitError if the limit is over."""
    if time.thread_time() > _end.get():
        raise TimeLimitError(
            "stopped: it takes too long beside the first capture",
            next_step="name this route with --route: the first capture has no limit",
        )
