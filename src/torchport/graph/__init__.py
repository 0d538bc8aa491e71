"""Read, describe, cut, edit, diff and save ONNX models.

Names are imported when first used: onnx_ir takes half a second, and `torchport --help` must not pay it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchport.facade import lazy_names

if TYPE_CHECKING:
    from torchport.files.onnx_files import load as load, save as save
    from torchport.graph.cutting import cut as cut
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
    from torchport.graph.splitting import split as split
    from torchport.inspection.describe import describe as describe
    from torchport.inspection.diff.diff import diff as diff
    from torchport.inspection.lint.linter import lint as lint
    from torchport.inspection.look import look as look
    from torchport.opset.convert import convert as set_opset  # noqa: F401 -- its public name

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "torchport.files.onnx_files": "load save",
        "torchport.graph.cutting": "cut",
        "torchport.graph.edits.attributes": "set_attribute",
        "torchport.graph.edits.constants": "to_input to_constant",
        "torchport.graph.edits.dtypes": "set_dtype",
        "torchport.graph.edits.folding": "fold",
        "torchport.graph.edits.functions": "inline outline",
        "torchport.graph.edits.inserting": "insert",
        "torchport.graph.edits.joining": "chain merge",
        "torchport.graph.edits.metadata": "set_metadata rename_metadata strip_metadata",
        "torchport.graph.edits.naming": "rename",
        "torchport.graph.edits.other_weights": "set_weights",
        "torchport.graph.edits.processing": "preprocess postprocess",
        "torchport.graph.edits.recipe": "edit",
        "torchport.graph.edits.removing": "bypass remove",
        "torchport.graph.edits.replacing": "replace",
        "torchport.graph.edits.shaping": "set_dim set_shape clear_shapes",
        "torchport.graph.edits.tidying": "sort deduplicate remove_unused",
        "torchport.graph.exposing": "expose",
        "torchport.graph.splitting": "split",
        "torchport.inspection.describe": "describe",
        "torchport.inspection.diff.diff": "diff",
        "torchport.inspection.lint.linter": "lint",
        "torchport.inspection.look": "look",
        "torchport.opset.convert": "convert=set_opset",
    },
)
