"""Read, describe, cut, edit, diff and save ONNX models.

The names are imported when first used: `onnx_ir` takes half a second, and `torchport --help` must not pay it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchport.graph.editing import bypass as bypass
    from torchport.graph.files import load as load, save as save

__all__ = ["bypass", "load", "save"]

_HOMES = {"load": "files", "save": "files", "bypass": "editing"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"torchport.graph.{_HOMES[name]}"), name)
