"""aten::expm1

    eˣ - 1 = 2t / (1 - t), t = tanh(x / 2)

Torch's translation is Exp(x) - 1, of which nothing is left near zero: -1e-6 comes out as -1.01e-6. The identity keeps
its digits there; Apertus's answer to its padding token rests on them. Far from zero t is one, and the difference is
exact enough.

Source of truth: PyTorch's answers, which are the C library's expm1.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::expm1.default")
def expm1(x: Any) -> Any:
    """Translate one call; `x` is the graph's value."""
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        x = op.Cast(x, to=ir.DataType.FLOAT)  # whole numbers give floats, as in PyTorch
        dtype = ir.DataType.FLOAT
    else:
        dtype = x.dtype
    half, one, two = (op.Constant(value=ir.tensor(number, dtype=dtype)) for number in (0.5, 1.0, 2.0))
    small = op.Less(op.Abs(x), one)
    t = op.Tanh(op.Mul(op.Where(small, x, half), half))  # a number in range where the other branch is taken
    near = op.Div(op.Mul(two, t), op.Sub(one, t))
    return op.Where(small, near, op.Sub(op.Exp(x), one))
