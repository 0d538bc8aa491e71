"""Read, describe, cut, edit, diff and save ONNX models.

Every function takes what the caller has: a model as an `onnx_ir.Model`, an `onnx.ModelProto` or the path of a file;
nodes and tensors by name, by pattern or as the `onnx_ir.Node` and `onnx_ir.Value` of that model. An argument of
another type is an `InputError`.

An edit changes an `onnx_ir.Model` in place, whole or not at all, and returns how much it changed. A file or a
`ModelProto` stays as it is: then the edit returns the changed `onnx_ir.Model`.

Names are imported when first used: onnx_ir takes half a second, and `torchport --help` must not pay it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchport.facade import lazy_names

if TYPE_CHECKING:
    from torchport.editing.attributes import set_attribute as set_attribute
    from torchport.editing.cleanup import deduplicate as deduplicate, remove_unused as remove_unused, sort as sort
    from torchport.editing.compose import chain as chain, merge as merge
    from torchport.editing.dtype import set_dtype as set_dtype
    from torchport.editing.extract import cut as cut, expose as expose
    from torchport.editing.fold import fold as fold
    from torchport.editing.functions import inline as inline, outline as outline
    from torchport.editing.insert import insert as insert
    from torchport.editing.metadata import (
        rename_metadata as rename_metadata,
        set_metadata as set_metadata,
        strip_metadata as strip_metadata,
    )
    from torchport.editing.preprocessing.edit import postprocess as postprocess, preprocess as preprocess
    from torchport.editing.recipe import edit as edit
    from torchport.editing.remove import bypass as bypass, remove as remove
    from torchport.editing.rename import rename as rename
    from torchport.editing.replace import replace as replace
    from torchport.editing.shapes import clear_shapes as clear_shapes, set_dim as set_dim, set_shape as set_shape
    from torchport.editing.split import split as split
    from torchport.editing.weights import set_weights as set_weights, to_constant as to_constant, to_input as to_input
    from torchport.files.onnx_files import load as load, save as save
    from torchport.inspection.describe import describe as describe
    from torchport.inspection.diff.diff import diff as diff
    from torchport.inspection.lint.linter import lint as lint
    from torchport.inspection.look import look as look
    from torchport.opset.convert import convert as set_opset  # noqa: F401 -- its public name

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "torchport.editing.attributes": "set_attribute",
        "torchport.editing.cleanup": "sort deduplicate remove_unused",
        "torchport.editing.compose": "chain merge",
        "torchport.editing.dtype": "set_dtype",
        "torchport.editing.extract": "cut expose",
        "torchport.editing.fold": "fold",
        "torchport.editing.functions": "inline outline",
        "torchport.editing.insert": "insert",
        "torchport.editing.metadata": "set_metadata rename_metadata strip_metadata",
        "torchport.editing.preprocessing.edit": "preprocess postprocess",
        "torchport.editing.recipe": "edit",
        "torchport.editing.remove": "bypass remove",
        "torchport.editing.rename": "rename",
        "torchport.editing.replace": "replace",
        "torchport.editing.shapes": "set_dim set_shape clear_shapes",
        "torchport.editing.split": "split",
        "torchport.editing.weights": "to_input to_constant set_weights",
        "torchport.files.onnx_files": "load save",
        "torchport.inspection.describe": "describe",
        "torchport.inspection.diff.diff": "diff",
        "torchport.inspection.lint.linter": "lint",
        "torchport.inspection.look": "look",
        "torchport.opset.convert": "convert=set_opset",
    },
    check=True,
)
