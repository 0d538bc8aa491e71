"""Known differences between what a model answers and what a capture of it records, each mended in a file of its own.

A repair is a context manager over the model: it holds during the capture only, and leaves the model as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchport.capture.repairs import padded_encoder


@contextlib.contextmanager
def repaired(target: Any) -> Iterator[None]:
    """Every repair that applies to `target`, for the time of a capture."""
    with padded_encoder.repaired(target):
        yield
