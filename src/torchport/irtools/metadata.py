"""Every metadata key that torchport writes, the origin of a node, and the export's record in a saved model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import onnx_ir as ir

from torchport._version import __version__
from torchport.irtools.traversal import all_nodes
from torchport.results import MARK, Origin, Proof

MODULE = "torchport.module"
SOURCE = "torchport.source"
OPERATOR = "torchport.operator"
CALL = "torchport.call"  # nodes that one call of a torch operator became share it; its result is called so, as a rule


def origin_of(node: ir.Node) -> Origin:
    props = node.metadata_props
    return Origin(props.get(MODULE, ""), props.get(SOURCE, ""), props.get(OPERATOR, ""))


def call_of(node: ir.Node) -> str:
    """Which call of a torch operator a node comes from; empty if nothing tells."""
    return node.metadata_props.get(CALL, "")


def find_origin(model: ir.Model, node_name: str) -> Origin | None:
    """The origin of the node of that name, wherever in the model it is."""
    for node in all_nodes(model):
        if node.name == node_name:
            return origin_of(node)
    return None


def module_of(node: ir.Node) -> str:
    """The path of the module a node comes from; empty for the model itself, or if nobody knows."""
    path = node.metadata_props.get(MODULE, "")
    return "" if path.startswith("_empty_nn_module_stack") else path  # torch's name for code of its own


PROOF = "torchport.proof"  # the entry of the metadata that tells what was proven


ANNOTATION = "quant_parameter_tensor_names"  # where onnx-ir keeps the tensors a quantization annotation names


PREFIX = "torchport."


def write(
    model: ir.Model, *, route: str, proof: Proof, unproven: str = "", operators: list[dict[str, Any]] | None = None
) -> None:
    """Put the story into the model's metadata. No dates: the same export gives the same bytes."""
    model.producer_name = "torchport"
    model.producer_version = __version__
    entries: dict[str, Any] = {
        "route": route,
        "proof": proof.summary(),
        "versions": {name: version(name) for name in ("torch", "onnx", "onnxruntime", "onnxscript")},
    }
    if operators:
        entries["operators"] = operators
    if unproven:
        entries["unproven"] = unproven
    for key, value in entries.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        model.metadata_props[PREFIX + key] = text


def read(model: ir.Model) -> dict[str, Any]:
    """The entries `write` made, for showing."""
    found = {k.removeprefix(PREFIX): v for k, v in model.metadata_props.items() if k.startswith(PREFIX)}
    return {k: json.loads(v) if v[:1] in "{[" else v for k, v in found.items()}


# Marks on nodes that mean something in this process only.


@contextlib.contextmanager
def unmarked(model: ir.Model) -> Iterator[None]:
    """The model without marks, for saving."""
    marked = [n for n in model.graph.all_nodes() if MARK in n.metadata_props]
    taken = [n.metadata_props.pop(MARK) for n in marked]
    try:
        yield
    finally:
        for node, mark in zip(marked, taken, strict=True):
            node.metadata_props[MARK] = mark
