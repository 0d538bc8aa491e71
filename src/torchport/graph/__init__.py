"""Read, describe, cut, edit, diff and save ONNX models.

The names are imported when first used: `onnx_ir` takes half a second, and `torchport --help` must not pay it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchport.graph.files import load as load, save as save

__all__ = ["load", "save"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchport.graph import files

    return getattr(files, name)
