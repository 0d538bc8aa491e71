"""Make tensors inside a model outputs of it, to look at their values."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

import onnx_ir as ir

from torchport.files import onnx_files
from torchport.irtools.metadata import MODULE
from torchport.irtools.names import Names


def expose(model: ir.Model | str | os.PathLike[str], tensors: Sequence[str] | str = "*") -> ir.Model:
    """A copy of the model with more outputs: these tensors of its main graph.

    Args:
        model: a model or a file.
        tensors: names, patterns (``relu_*``), or modules of the PyTorch model (``encoder.layer.3``, ``encoder.*``):
            what their nodes give. ``*`` for all.

    Raises:
        InputError: nothing in the model is called so.
    """
    whole = onnx_files.load(model) if isinstance(model, (str, os.PathLike)) else model
    copy = whole.clone()
    names = Names(copy)
    there = set(copy.graph.outputs)
    for pattern in [tensors] if isinstance(tensors, str) else tensors:
        found = _matching(copy, pattern)
        if not found:
            raise names.unknown(pattern, "tensor or module", names.values)
        for value in found:
            if value not in there:
                there.add(value)
                copy.graph.outputs.append(value)
    return copy


def _matching(model: ir.Model, pattern: str) -> list[ir.Value]:
    found: list[ir.Value] = []
    for node in model.graph:
        module = node.metadata_props.get(MODULE, "")
        whole = bool(module) and (fnmatch.fnmatchcase(module, pattern) or module.startswith(f"{pattern}."))
        found += [v for v in node.outputs if v.name and (whole or fnmatch.fnmatchcase(v.name, pattern))]
    return [v for v in found if v.dtype is not None or v.type is None]
