"""Models in a line of ONNX text, what they answer, and edits that are refused without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from torchport.errors import InputError
from torchport.inspection.lint.linter import lint


def model(text: str) -> ir.Model:
    """Of opset 17, with a domain `my`."""
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "my": 1]> {text}'))


def answers(given: ir.Model, **inputs: Any) -> list[Any]:
    """What ONNX Runtime gives for a model that has no fault."""
    assert [f for f in lint(given) if f.severity == "error"] == []
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def refused(given: ir.Model, words: str, edit: Callable[..., int], *args: Any, **options: Any) -> InputError:
    """The error of an edit that leaves the model as it was."""
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match=words) as caught:
        edit(given, *args, **options)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before
    return caught.value
