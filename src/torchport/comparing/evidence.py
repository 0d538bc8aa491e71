"""One node and its data in two files, so that anyone can run it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from torchport.editing.extract import cut
from torchport.errors import InputError, SaveError
from torchport.files import onnx_files
from torchport.inputs.samples import save_sample
from torchport.irtools.traversal import used_by
from torchport.tensors import Array


def inputs_of(node: ir.Node) -> list[str]:
    """What a node gets from other nodes or from the model's inputs: no weights."""
    found = [v for v in used_by(node) if not v.is_initializer() and not _is_constant(v)]
    return [str(v.name) for v in dict.fromkeys(found)]


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder, before the work whose result is to go there.

    Raises:
        SaveError: it cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"the folder '{folder}' cannot be made: {error.strerror}") from error


def save_node(
    model: ir.Model, node: ir.Node, folder: Path, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> tuple[str, str]:
    """Write `node.onnx` and `node.npz`: the node alone, what it gets, and under ``expected.`` what it should give.

    Raises:
        SaveError: they cannot be written, or the node does not make a model of its own.
    """
    make_folder(folder)
    part = _alone(model, node)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in str(node.name)) or "node"
    target, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    known = all(v.shape is not None for v in (*part.graph.inputs, *part.graph.outputs))
    onnx_files.save(
        part, target, check=known
    )  # what a loop gives may have no shape: engines run that, the checker refuses
    save_sample(data, {**inputs, **{f"expected.{k}": v for k, v in expected.items()}})
    return str(target), str(data)


def _alone(model: ir.Model, node: ir.Node) -> ir.Model:
    try:
        return cut(model, inputs_of(node), [str(v.name) for v in node.outputs if v.name])
    except InputError as error:
        raise SaveError(f"node '{node.name}' cannot be saved alone: {error.what}") from error
