"""Read, describe, cut, edit, diff and save ONNX models.

The names are imported when first used: `onnx_ir` takes half a second, and `torchport --help` must not pay it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchport.graph.cutting import cut as cut
    from torchport.graph.describing import describe as describe
    from torchport.graph.diffing import diff as diff
    from torchport.graph.edits.attributes import set_attribute as set_attribute
    from torchport.graph.edits.constants import to_constant as to_constant, to_input as to_input
    from torchport.graph.edits.dtypes import set_dtype as set_dtype
    from torchport.graph.edits.folding import fold as fold
    from torchport.graph.edits.functions import inline as inline, outline as outline
    from torchport.graph.edits.inserting import insert as insert
    from torchport.graph.edits.joining import chain as chain, merge as merge
    from torchport.graph.edits.metadata import (
        rename_metadata as rename_metadata,
        set_metadata as set_metadata,
        strip_metadata as strip_metadata,
    )
    from torchport.graph.edits.naming import rename as rename
    from torchport.graph.edits.other_weights import set_weights as set_weights
    from torchport.graph.edits.processing import postprocess as postprocess, preprocess as preprocess
    from torchport.graph.edits.recipe import edit as edit
    from torchport.graph.edits.removing import bypass as bypass, remove as remove
    from torchport.graph.edits.replacing import replace as replace
    from torchport.graph.edits.shaping import clear_shapes as clear_shapes, set_dim as set_dim, set_shape as set_shape
    from torchport.graph.edits.tidying import deduplicate as deduplicate, remove_unused as remove_unused, sort as sort
    from torchport.graph.exposing import expose as expose
    from torchport.graph.files import load as load, save as save
    from torchport.graph.linting import lint as lint
    from torchport.graph.neighbors import look as look
    from torchport.graph.opset import convert as set_opset
    from torchport.graph.splitting import split as split

# name: where it lives below torchport.graph, "module" or "module:name there"
_HOMES = {
    "load": "files",
    "save": "files",
    "cut": "cutting",
    "describe": "describing",
    "expose": "exposing",
    "lint": "linting",
    "look": "neighbors",
    "split": "splitting",
    "diff": "diffing",
    "edit": "edits.recipe",
    "rename": "edits.naming",
    "bypass": "edits.removing",
    "remove": "edits.removing",
    "set_attribute": "edits.attributes",
    "set_metadata": "edits.metadata",
    "rename_metadata": "edits.metadata",
    "strip_metadata": "edits.metadata",
    "to_input": "edits.constants",
    "to_constant": "edits.constants",
    "set_weights": "edits.other_weights",
    "set_dtype": "edits.dtypes",
    "sort": "edits.tidying",
    "deduplicate": "edits.tidying",
    "remove_unused": "edits.tidying",
    "replace": "edits.replacing",
    "insert": "edits.inserting",
    "chain": "edits.joining",
    "merge": "edits.joining",
    "inline": "edits.functions",
    "outline": "edits.functions",
    "fold": "edits.folding",
    "set_dim": "edits.shaping",
    "set_shape": "edits.shaping",
    "clear_shapes": "edits.shaping",
    "preprocess": "edits.processing",
    "postprocess": "edits.processing",
    "set_opset": "opset:convert",
}

__all__ = [
    "bypass",
    "chain",
    "clear_shapes",
    "cut",
    "deduplicate",
    "describe",
    "diff",
    "edit",
    "expose",
    "fold",
    "inline",
    "insert",
    "lint",
    "load",
    "look",
    "merge",
    "outline",
    "postprocess",
    "preprocess",
    "remove",
    "remove_unused",
    "rename",
    "rename_metadata",
    "replace",
    "save",
    "set_attribute",
    "set_dim",
    "set_dtype",
    "set_metadata",
    "set_opset",
    "set_shape",
    "set_weights",
    "sort",
    "split",
    "strip_metadata",
    "to_constant",
    "to_input",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    return getattr(import_module(f"torchport.graph.{module}"), there or name)
