"""What torchport ships where torch's own translation is missing or wrong. One file an operator, or a family of them.

A file gives `translations()`, which build ONNX nodes, or `compositions()`, which are plain PyTorch; both from torch's
operators to functions. All files are found by themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

Functions = dict[Any, Callable[..., Any]]


def translations() -> Functions:
    """Torch operator to translation, as `torch.onnx.export` takes it in its custom translation table."""
    return _gathered("translations")


def compositions() -> Functions:
    """Torch operator to a PyTorch function of operators that have translations."""
    return _gathered("compositions")


def _gathered(kind: str) -> Functions:
    found: Functions = {}
    for module in pkgutil.iter_modules(__path__):
        given = getattr(importlib.import_module(f"{__name__}.{module.name}"), kind, None)
        found |= given() if given is not None else {}
    return found
