"""Give memory back between stages, so that the peak is that of the largest stage and not of their sum."""

from __future__ import annotations

import ctypes
import sys


def release() -> None:
    """Hand free heap pages back to the system. glibc keeps them otherwise; elsewhere this does nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
