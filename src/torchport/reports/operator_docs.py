"""What ONNX's documentation says of the operators in a model: purpose, inputs, outputs, attributes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from torchport.irtools.schemas import default_of
from torchport.irtools.types import operator_name

_LONGEST = 6000  # letters of one text; the longest of ONNX's own has some 5,000
_LONGEST_DEFAULT = 80


def operator_docs(nodes: Iterable[ir.Node], opsets: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the documentation of each operator that ONNX has, by name, as it stands at the model's opset."""
    used = {operator_name(node): ("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in nodes}
    found = {name: _schema(domain, kind, opsets.get(domain, 1)) for name, (domain, kind) in sorted(used.items())}
    return {name: _entry(schema) for name, schema in found.items() if schema is not None}


@functools.cache
def _schema(domain: str, kind: str, opset: int) -> Any | None:
    try:
        return onnx.defs.get_schema(kind, opset, domain)
    except onnx.defs.SchemaError:  # an operator of somebody else
        return None


def _entry(schema: Any) -> dict[str, Any]:
    return {
        "doc": _text(schema.doc),
        "since": schema.since_version,
        "deprecated": bool(schema.deprecated),
        "inputs": [{"name": one.name, "doc": _text(one.description)} for one in schema.inputs],
        "outputs": [{"name": one.name, "doc": _text(one.description)} for one in schema.outputs],
        "attributes": {
            name: {
                "doc": _text(attribute.description),
                "default": _default(attribute),
                "required": bool(attribute.required),
            }
            for name, attribute in schema.attributes.items()
        },
    }


def _default(attribute: Any) -> str:
    value = default_of(attribute)
    return "" if value is None else (value.decode() if isinstance(value, bytes) else str(value))[:_LONGEST_DEFAULT]


def _text(doc: str | None) -> str:
    return "\n".join(line.rstrip() for line in (doc or "").strip().splitlines())[:_LONGEST]
