"""Patches of torch.onnx and onnxscript that hold while a program is translated."""

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
from onnxscript.rewriter import _basics, _matcher as matcher_module
from onnxscript.rewriter._matcher import SimplePatternMatcher
from torch.onnx._internal.fx.passes import type_promotion

from torchport.errors import CaptureError

# Numbers that torch.onnx and its optimizer do not take exactly.
#
# Python's numbers are rounded to float32 on their way into a float64 model: `x * 0.1` is off by 1e-9, because 0.1
# becomes a constant of float32 which is then cast. While a program is translated, a number that is cast is a constant
# of float64; cast to float32 it is the same as before.
#
# The optimizer behind torch.onnx takes 1e-8 for zero: `x / (norm + 1e-8)` loses its guard, and zeros answer NaN.
#
# Its rules drop `x + c` and `x * c` where c is zero or one, and compare with a tolerance of 1e-8 and 1e-5. Helium's
# RMSNorm is such a model: NaN for the padding token, right for every other. While a program is translated, zero and one
# are told from other numbers exactly; the tolerance stays for constants such as √2, which rules compare too.
#
# Sources of truth: `OpRecorder._call_op` in torch/onnx/_internal/exporter/_building.py (private: torch has no public
# way to say how numbers become constants; read in torch 2.13), `_match_constant` in onnxscript/rewriter/_matcher.py,
# the rules in onnxscript/rewriter/rules/common.

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


# Sums and products of float16 and bfloat16 keep their type.
#
# torch's translation casts their input to float32, as PyTorch computes in it, and forgets to cast the answer back. It
# is left in its type here: ONNX has these operators in half precision, and engines add up in float32 all the same.

_RULES = (type_promotion.ReductionTypePromotionRule, type_promotion.SumLikeReductionTypePromotionRule)


@contextlib.contextmanager
def half_reductions() -> Iterator[None]:
    """Hold while a program is translated."""
    saved = [rule.preview_type_promotion for rule in _RULES]
    for rule, own in zip(_RULES, saved, strict=True):
        rule.preview_type_promotion = _keeping(own)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for rule, own in zip(_RULES, saved, strict=True):
            rule.preview_type_promotion = own  # type: ignore[method-assign]


def _keeping(own: Any) -> Any:
    def preview(rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = own(rule, args, kwargs)
        if args[0].dtype in (torch.float16, torch.bfloat16) and kwargs.get("dtype") is None:
            return type_promotion.TypePromotionSnapshot({0: args[0].dtype}, {}, found.out_dtype)
        return found

    return preview


# Patterns of the ONNX optimizer tried only at nodes of their own operator.
#
# onnxscript tries each of its patterns at each node, and for a pattern with several outputs goes through the whole
# graph before it looks at the node: with the number of nodes squared, half of an export of some thousands of them.
# Where the operator of a pattern's first output is not the node's, it cannot match.
#
# onnxscript 0.7; `SimplePatternMatcher.match` in onnxscript/rewriter/_matcher.py.


@contextlib.contextmanager
def quick_patterns() -> Iterator[None]:
    """Hold while a program is translated."""
    matchers: Any = SimplePatternMatcher
    own = matchers.match

    def match(matcher: Any, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **options: Any) -> Any:
        wanted = matcher.pattern.output_nodes[0]._op_identifier  # domain, operator, overload; None if it may be several
        if wanted is not None and wanted[1] != node.op_type:
            return _basics.MatchResult().fail("another operator", node)
        return own(matcher, model, graph, node, **options)

    matchers.match = match
    try:
        yield
    finally:
        matchers.match = own
