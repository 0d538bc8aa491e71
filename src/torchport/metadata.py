"""What a saved model says about itself: how it was made, with what, and how it was proven."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import onnx_ir as ir

from torchport._version import __version__
from torchport.results import Proof

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
