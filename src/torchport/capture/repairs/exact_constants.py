"""Numbers that torch.onnx and its optimizer do not take exactly.

Python's numbers are rounded to float32 on their way into a float64 model: `x * 0.1` is off by 1e-9, because 0.1 becomes
a constant of float32 which is then cast. While a program is translated, a number that is cast is a constant of float64;
cast to float32 it is the same as before.

The optimizer behind torch.onnx takes 1e-8 for zero: `x / (norm + 1e-8)` loses its guard, and zeros answer NaN.

Its rules drop `x + c` and `x * c` where c is zero or one, and compare with a tolerance of 1e-8 and 1e-5. Helium's
RMSNorm is such a model: NaN for the padding token, right for every other. While a program is translated, zero and one
are told from other numbers exactly; the tolerance stays for constants such as √2, which rules compare too.

Sources of truth: `OpRecorder._call_op` in torch/onnx/_internal/exporter/_building.py (private: torch has no public way
to say how numbers become constants; read in torch 2.13), `_match_constant` in onnxscript/rewriter/_matcher.py, the
rules in onnxscript/rewriter/rules/common.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import types
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.rewriter import _matcher as matcher_module

from torchport.errors import CaptureError

_matcher: Any = matcher_module


@contextlib.contextmanager
def exact_constants() -> Iterator[None]:
    own = _matcher.math
    _matcher.math = _Exact()
    recorder = _recorder()
    call = recorder._call_op
    recorder._call_op = _with_exact_casts(call)
    try:
        yield
    finally:
        _matcher.math = own
        recorder._call_op = call


def _recorder() -> Any:
    try:
        recorder = importlib.import_module("torch.onnx._internal.exporter._building").OpRecorder
        parameters = [*inspect.signature(recorder._call_op).parameters]
    except (ImportError, AttributeError):
        parameters = []
    if parameters[1:3] != ["op_signature", "named_inputs"]:
        raise CaptureError(
            f"torch {torch.__version__} turns numbers into constants elsewhere than torch 2.13",
            next_step="use the torch of constraints.txt",
        )
    return recorder


def _with_exact_casts(call: Any) -> Any:
    def exact(self: Any, signature: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if signature.name in ("Cast", "CastLike") and isinstance(inputs.get("input"), float):
            number = ir.tensor(inputs["input"], dtype=ir.DataType.DOUBLE)
            inputs = {**inputs, "input": self.opset.Constant(value=number)}
        return call(self, signature, inputs, *rest, **named)

    return exact


class _Exact(types.ModuleType):
    """`math`, whose `isclose` knows zero and one from what is near them."""

    def __init__(self) -> None:
        super().__init__("math")

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    @staticmethod
    def isclose(found: float, wanted: float, **tolerances: float) -> bool:
        return found == wanted if wanted in (0, 1) else math.isclose(found, wanted, **tolerances)
