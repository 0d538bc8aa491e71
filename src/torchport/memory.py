"""Memory given back between stages, so that the peak is that of the largest one; and garbage left alone for a while."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator


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
