"""What the published operator lists of engines say of a model, where an engine is not here to run it.

`published.json` has for each engine the list it was taken from, the opsets that the list covers, and the operators of
ONNX that the engine lacks by it.
"""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

import onnx_ir as ir

from torchport.irtools import metadata
from torchport.irtools.names import name_of
from torchport.irtools.traversal import all_nodes, opset_of
from torchport.irtools.types import is_custom, operator_name


@functools.cache
def lists() -> dict[str, Any]:
    """Return the lists by engine."""
    text = (files("torchport.benchmark") / "published.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def first_lack(model: ir.Model, engine: str) -> tuple[str, str, str]:
    """Return why an engine cannot run a model by its list, with the node and its line; empty texts if it can."""
    listed = lists()[engine]
    oldest, newest = listed["opsets"]
    opset = opset_of(model) or oldest
    if not oldest <= opset <= newest:
        return f"the list has opsets {oldest} to {newest}, the model has {opset}", "", ""
    for node in all_nodes(model):
        own = is_custom(node) and node.op_identifier() not in model.functions
        if own or (not node.domain and node.op_type in listed["lacks"]):
            source = node.metadata_props.get(metadata.SOURCE, "")
            return f"{operator_name(node)} is not in the list", name_of(node), source
    return "", "", ""
