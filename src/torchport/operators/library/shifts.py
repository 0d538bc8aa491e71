"""aten::__lshift__, aten::__rshift__, aten::bitwise_left_shift, aten::bitwise_right_shift

    x << n = x · 2ⁿ        x >> n = floor(x / 2ⁿ)

ONNX's BitShift takes integers without sign only, and torch's translation gives uint8 back as int8. Powers of two are
exact: the product wraps around as bits fall off, and the shift to the right, which keeps the sign, is a quotient
rounded down. It is taken in int64.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates(
    "aten::__lshift__.Scalar",
    "aten::__lshift__.Tensor",
    "aten::bitwise_left_shift.Tensor",
    "aten::bitwise_left_shift.Tensor_Scalar",
)
def left(self: Any, other: Any) -> Any:
    """Translate one call; `other` is a number or a value of the graph."""
    wide = op.Mul(op.Cast(self, to=ir.DataType.INT64), _power(other))
    return op.Cast(wide, to=self.dtype)


@translates(
    "aten::__rshift__.Scalar",
    "aten::__rshift__.Tensor",
    "aten::bitwise_right_shift.Tensor",
    "aten::bitwise_right_shift.Tensor_Scalar",
)
def right(self: Any, other: Any) -> Any:
    """Translate one call; integers are divided toward zero, so what is left over below zero is taken off first."""
    wide, power = op.Cast(self, to=ir.DataType.INT64), _power(other)
    rest = op.Mod(wide, power)  # of the divisor's sign: never below zero
    return op.Cast(op.Div(op.Sub(wide, rest), power), to=self.dtype)


def _power(exponent: Any) -> Any:
    if isinstance(exponent, int):
        return op.Constant(value_int=2**exponent)
    two = op.Constant(value_int=2)
    return op.Pow(two, op.Cast(exponent, to=ir.DataType.INT64))
