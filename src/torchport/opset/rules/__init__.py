"""All rules by operator and border, and the borders that were reviewed and need none.

A new file of rules is added to `_FILES`, nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import MappingProxyType

import onnx_ir as ir

from torchport.irtools.builder import Builder

Rule = Callable[[ir.Node, Builder], Sequence[ir.Value | None] | None]
"""Carries one node across one opset boundary.

It returns what stands for the node's outputs; or None when the node (perhaps with attributes taken off) means the
same on both sides and only its form is left to be checked. It raises `Refusal` with the reason otherwise.
"""
Rules = dict[tuple[str, int], Rule]
"""Rules by operator and by the opset whose border they cross: ``("Pad", 18)`` crosses between 17 and 18."""

_FILES = ("arithmetic", "constants", "indexing", "layers", "normalization", "reductions", "resize", "shapes")


def _joined(side: str) -> MappingProxyType[tuple[str, int], Rule]:
    joined: Rules = {}
    for file in _FILES:
        rules: Rules = getattr(importlib.import_module(f"{__package__}.{file}"), side)
        twice = joined.keys() & rules.keys()
        if twice:
            raise RuntimeError(f"two rules for {sorted(twice)}")
        joined.update(rules)
    return MappingProxyType(joined)


DOWN = _joined("DOWN")
UP = _joined("UP")

# Borders without a rule. Where the prose of two versions of an operator is the same, only the types they take differ,
# and types are checked. Where the prose differs, a person has to read it: that was done for every border from 8 to 28.
# A border in neither table and without a rule is refused, so an opset newer than these tables is never guessed at.

# Either the same said better, or something new that shows on the node (an attribute, an input, a dtype).
HARMLESS: dict[str, tuple[int, ...]] = {
    "Abs": (13,),
    "Add": (14,),
    "ArgMax": (12, 13),
    "ArgMin": (12, 13),
    "Attention": (25,),
    "AveragePool": (11,),
    "BatchNormalization": (9, 15),
    "BitShift": (28,),
    "Cast": (9, 13),
    "Ceil": (13,),
    "Clip": (13,),
    "Constant": (11,),
    "Conv": (11,),
    "DepthToSpace": (13,),
    "DequantizeLinear": (19, 21),
    "Div": (14,),
    "Dropout": (22,),
    "EyeLike": (22,),
    "Floor": (13,),
    "Gather": (13,),
    "GatherElements": (13,),
    "GatherND": (12, 13),
    "Gemm": (13,),
    "LRN": (13,),
    "LSTM": (22,),
    "Loop": (11, 13, 16),
    "LpPool": (11,),
    "MaxPool": (8, 11, 12),
    "MaxUnpool": (11,),
    "MeanVarianceNormalization": (13,),
    "Mod": (13,),
    "Mul": (14,),
    "NegativeLogLikelihoodLoss": (13,),
    "NonMaxSuppression": (11,),
    "OptionalGetElement": (18,),
    "OptionalHasElement": (18,),
    "Pad": (13,),
    "Pow": (13,),
    "QuantizeLinear": (19, 24, 25, 28),
    "ReduceL1": (13,),
    "ReduceL2": (13,),
    "ReduceLogSum": (13,),
    "ReduceLogSumExp": (13,),
    "ReduceMax": (13,),
    "ReduceMean": (13,),
    "ReduceMin": (13,),
    "ReduceProd": (13,),
    "ReduceSumSquare": (13,),
    "ScatterElements": (16,),
    "ScatterND": (16,),
    "Slice": (13,),
    "SoftmaxCrossEntropyLoss": (13,),
    "SpaceToDepth": (28,),
    "Squeeze": (23,),
    "Sub": (14,),
    "Transpose": (21, 25),
    "Unsqueeze": (23,),
}

# The newer version allows more, so upwards nothing changes; a rule sees to the way down.
WIDENED: dict[str, tuple[int, ...]] = {
    "ArgMax": (11,),
    "ArgMin": (11,),
    "Attention": (24,),
    "AveragePool": (10,),
    "Cast": (19,),
    "CastLike": (19,),
    "Compress": (11,),
    "Concat": (11,),
    "Constant": (12,),
    "DepthToSpace": (11,),
    "DequantizeLinear": (13, 23),
    "Flatten": (11,),
    "GRU": (14,),
    "Gather": (11,),
    "Gemm": (11,),
    "Hardmax": (11,),
    "If": (11,),
    "LSTM": (14,),
    "LogSoftmax": (11,),
    "LpPool": (18,),
    "Max": (8,),
    "MaxPool": (10,),
    "Mean": (8,),
    "Min": (8,),
    "Mod": (28,),
    "OneHot": (11,),
    "Pad": (18, 19),
    "QuantizeLinear": (13, 21, 23),
    "RNN": (14,),
    "Range": (27,),
    "ReduceL1": (11,),
    "ReduceL2": (11,),
    "ReduceLogSum": (11,),
    "ReduceLogSumExp": (11,),
    "ReduceMax": (11, 12, 20),
    "ReduceMean": (11,),
    "ReduceMin": (11, 12, 20),
    "ReduceProd": (11,),
    "ReduceSum": (11,),
    "ReduceSumSquare": (11,),
    "Reshape": (14,),
    "Resize": (18, 19),
    "Scan": (11,),
    "ScatterElements": (18,),
    "ScatterND": (18,),
    "Shape": (15,),
    "Slice": (11,),
    "Softmax": (11,),
    "Split": (11,),
    "Squeeze": (11,),
    "Sum": (8,),
    "TopK": (11,),
    "Unsqueeze": (11,),
}


def is_harmless(op_type: str, border: int, *, downwards: bool) -> bool:
    """Whether crossing that border by itself keeps the meaning of a node that fits on the other side."""
    if border in HARMLESS.get(op_type, ()):
        return True
    return not downwards and border in WIDENED.get(op_type, ())
