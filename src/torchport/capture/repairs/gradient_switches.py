"""`with torch.no_grad():` beside a branch or a loop: torch.export loses the branch's graph as it groups what is in it.

A capture computes no gradients, so the switches have nothing to do and need not be recorded.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from torchport.capture.repairs.repair import capture_repair

_LOST = re.compile(r"object has no attribute '\w+_graph_\d+'")


def _needs_gradient_switches(error: Exception) -> bool:
    return isinstance(error, AttributeError) and _LOST.search(str(error)) is not None


@capture_repair("switching gradients on and off beside a branch", after=_needs_gradient_switches)
@contextlib.contextmanager
def gradient_switches(target: Any) -> Iterator[bool]:
    original = torch._C._set_grad_enabled
    torch._C._set_grad_enabled = lambda mode: None  # type: ignore[assignment]
    try:
        yield True
    finally:
        torch._C._set_grad_enabled = original
