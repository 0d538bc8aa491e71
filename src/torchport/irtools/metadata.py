"""Every metadata key that torchport writes, the origin of a node, and the export's record in a saved model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import onnx_ir as ir

from torchport._version import __version__
from torchport.irtools.traversal import all_nodes
from torchport.results import MARK, Bound, Origin, Proof, to_json

# Of a node: where it comes from
MODULE = "torchport.module"
SOURCE = "torchport.source"
OPERATOR = "torchport.operator"
CALL = "torchport.call"  # nodes that one call of a torch operator became share it; its result is called so, as a rule
FOLDED = "torchport.folded"  # the operator and the origin of each node that was folded into it, as JSON
EDIT = "torchport.edit"  # the edit that inserted the node

# Of a model: how it was made
PREFIX = "torchport."
PROOF = "torchport.proof"
UNPROVEN = "torchport.unproven"  # why nothing was proven
OPERATORS = "torchport.operators"  # the custom operators, with the libraries that have their kernels
BOUNDS = "torchport.bounds"  # of dynamic dimensions: the sizes that the model is good for
OPTIMIZED = "torchport.optimized"  # the engine it was optimized for, and the proof beside the model before
WORKAROUNDS = "torchport.workarounds"  # of an engine's faults, by engine
GEOMETRY = "torchport.geometry"  # steps in front of the model that change the size of an image, by input
QUANTIZATION = "torchport.quantization"  # how a model was quantized, and what it lost
DIMS = "torchport.dims"  # names that only expressions in the inputs' shapes have: `half` of `2*half`

ANNOTATION = "quant_parameter_tensor_names"  # where onnx-ir keeps the tensors a quantization annotation names


def module_of(node: ir.Node) -> str:
    """Return the path of the module a node comes from; empty for the model itself, or if nobody knows."""
    path = node.metadata_props.get(MODULE, "")
    return "" if path.startswith("_empty_nn_module_stack") else path  # torch's name for code of its own


def origin_of(node: ir.Node) -> Origin:
    """Return the module, the source line and the torch operator that a node comes from, as far as they are known."""
    props = node.metadata_props
    return Origin(module_of(node), props.get(SOURCE, ""), props.get(OPERATOR, ""))


def folded_into(node: ir.Node) -> tuple[tuple[str, Origin], ...]:
    """Return the operator and the origin of each node that a rule of the exporter folded into this one."""
    try:
        entries = json.loads(node.metadata_props.get(FOLDED, "[]"))
        return tuple((str(e["node"]), Origin(str(e["module"]), str(e["source"]), str(e["operator"]))) for e in entries)
    except (ValueError, TypeError, KeyError, RecursionError):  # the metadata was written by somebody else
        return ()


def write_folded(node: ir.Node, folded: Sequence[tuple[str, Origin]]) -> None:
    """Write which nodes were folded into this one."""
    entries = [{"node": op_type, **dataclasses.asdict(origin)} for op_type, origin in folded]
    node.metadata_props[FOLDED] = json.dumps(entries, sort_keys=True)


def call_of(node: ir.Node) -> str:
    """Return which call of a torch operator a node comes from; empty if nothing tells."""
    return node.metadata_props.get(CALL, "")


def find_origin(model: ir.Model, node_name: str) -> Origin | None:
    """Return the origin of the node of that name, or that makes a tensor of that name, wherever in the model it is."""
    nodes = list(all_nodes(model))
    found = [n for n in nodes if n.name == node_name] or [n for n in nodes if node_name in {v.name for v in n.outputs}]
    return origin_of(found[0]) if found else None


def write(
    model: ir.Model,
    *,
    route: str,
    proof: Proof,
    unproven: str = "",
    bounds: Mapping[str, Bound] | None = None,
    operators: list[dict[str, Any]] | None = None,
    workarounds: dict[str, dict[str, int]] | None = None,
    dims: list[str] | None = None,
) -> None:
    """Write the export's record into the model's metadata. No dates: the same export gives the same bytes."""
    model.producer_name = "torchport"
    model.producer_version = __version__
    entries: dict[str, Any] = {
        f"{PREFIX}route": route,
        PROOF: proof.summary(),
        f"{PREFIX}versions": {name: version(name) for name in ("torch", "onnx", "onnxruntime", "onnxscript")},
    }
    if operators:
        entries[OPERATORS] = operators
    if workarounds:  # by engine, each with the number of nodes it changed
        entries[WORKAROUNDS] = workarounds
    if bounds:
        entries[BOUNDS] = {name: to_json(bound) for name, bound in bounds.items()}
    if dims:
        entries[DIMS] = dims
    if unproven:
        entries[UNPROVEN] = unproven
    for key, value in entries.items():
        model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def read(model: ir.Model) -> dict[str, Any]:
    """Return torchport's own entries without their prefix; as anyone may write them, what does not parse is text."""
    entries = ((utf8(key), utf8(value)) for key, value in model.metadata_props.items())
    return {key.removeprefix(PREFIX): _parsed(value) for key, value in entries if key.startswith(PREFIX)}


def utf8(given: Any) -> str:
    """Return a text of a protobuf message, which gives bytes where it is no UTF-8."""
    return given.decode(errors="replace") if isinstance(given, bytes) else str(given)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text


def read_bounds(properties: Mapping[str, str]) -> dict[str, Bound]:
    """Return the bounds in a model's metadata; none where somebody else wrote something else."""
    try:
        entries = json.loads(properties.get(BOUNDS, "{}"))
        return {name: Bound(int(e["min"]), max(int(e["step"]), 1)) for name, e in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def operator_libraries(model: ir.Model) -> dict[str, str]:
    """Return the libraries that had the kernels of the model's own operators when it was saved, by operator."""
    try:
        entries = json.loads(model.metadata_props.get(OPERATORS, "[]"))
        return {e["name"]: e["library"] for e in entries if "library" in e}
    except (ValueError, TypeError, KeyError, AttributeError):  # the metadata was written by somebody else
        return {}


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
