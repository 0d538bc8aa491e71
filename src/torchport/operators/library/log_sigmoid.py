"""aten::log_sigmoid

    log(1 / (1 + e⁻ˣ)) = min(x, 0) - log1p(e^-|x|)

Torch's translation is Log(Sigmoid(x)): the sigmoid of -100 has lost its digits, and that of -104 is zero. Binary cross
entropy of logits is taken apart into this operator.

Source of truth: ATen's native/cpu/Activation.cpp.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.library import log1p
from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::log_sigmoid.default")
def log_sigmoid(x: Any) -> Any:
    """Translate one call; half floats are computed in float32, as PyTorch does."""
    if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return op.Cast(_log_sigmoid(op.Cast(x, to=ir.DataType.FLOAT), ir.DataType.FLOAT), to=x.dtype)
    return _log_sigmoid(x, x.dtype)


def _log_sigmoid(x: Any, dtype: ir.DataType) -> Any:
    zero = op.Constant(value=ir.tensor(0.0, dtype=dtype))
    return op.Sub(op.Min(x, zero), log1p.nodes(op.Exp(op.Neg(op.Abs(x))), dtype))
