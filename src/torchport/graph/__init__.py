"""Read, describe, cut, edit, diff and save ONNX models.

The names are imported when first used: `onnx_ir` takes half a second, and `torchport --help` must not pay it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchport.graph.cutting import cut as cut
    from torchport.graph.describing import describe as describe
    from torchport.graph.edits.removing import bypass as bypass
    from torchport.graph.exposing import expose as expose
    from torchport.graph.files import load as load, save as save
    from torchport.graph.linting import lint as lint
    from torchport.graph.neighbors import look as look
    from torchport.graph.splitting import split as split

__all__ = ["bypass", "cut", "describe", "expose", "lint", "load", "look", "save", "split"]

_HOMES = {
    "load": "files",
    "save": "files",
    "bypass": "edits.removing",
    "cut": "cutting",
    "describe": "describing",
    "expose": "exposing",
    "lint": "linting",
    "look": "neighbors",
    "split": "splitting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"torchport.graph.{_HOMES[name]}"), name)
