"""Arithmetic on sizes: operator.mul, operator.truediv, math.floor and their kin, on symbolic numbers.

    int(n * 0.29)  at n = 100:  28 in float64, as Python computes, 29 in float32

Torch's own translations compute with floats of 32 bits, divide negative sizes towards zero, and know no roots. These
use 64 bits wherever Python would have a float. Whole numbers stay whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registration import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_DOUBLE = ir.DataType.DOUBLE
_LONGER = "torchport.number_in_64_bits"


def arithmetic(operator: str) -> Callable[[Any, Any], Any]:
    """`operator` (Add, Sub, Mul, Pow, Min, Max) of two sizes or numbers."""

    def translate(a: Any, b: Any) -> Any:
        if _is_whole(a) and _is_whole(b):
            return getattr(op, operator)(_whole(a), _whole(b))
        return _number(getattr(op, operator)(_double(a), _double(b)))

    return translate


@translates("operator.truediv")
def truediv(a: Any, b: Any) -> Any:
    return _number(op.Div(_double(a), _double(b)))


@translates("operator.floordiv")
def floordiv(a: Any, b: Any) -> Any:
    """Down, as Python divides: ONNX's Div of whole numbers goes towards zero, and -(-n // 4) is a way to round up."""
    if _is_whole(a) and _is_whole(b):
        a, b = _whole(a), _whole(b)
        return op.Div(op.Sub(a, op.Mod(a, b)), b)
    return _number(op.Floor(op.Div(_double(a), _double(b))))


@translates("operator.mod")
def mod(a: Any, b: Any) -> Any:
    """With the divisor's sign, as Python's and ONNX's Mod of whole numbers."""
    if _is_whole(a) and _is_whole(b):
        return op.Mod(_whole(a), _whole(b))
    a, b = _double(a), _double(b)
    return _number(op.Sub(a, op.Mul(op.Floor(op.Div(a, b)), b)))


@translates("torch.sym_float")
def sym_float(a: Any) -> Any:
    return _number(_double(a))


@translates("torch.sym_sqrt")
def sqrt(a: Any) -> Any:
    return _number(op.Sqrt(_double(a)))


def rounding(operator: str) -> Callable[[Any], Any]:
    """Floor, Ceil or Round (half to even, as in Python) to a whole number."""

    def translate(a: Any, digits: Any = None) -> Any:
        if digits is not None:
            raise NotImplementedError("a size is rounded to whole numbers only")
        return a if _is_whole(a) else op.Cast(getattr(op, operator)(_double(a)), to=ir.DataType.INT64)

    return translate


@translates("math.trunc")
def trunc(a: Any) -> Any:
    return a if _is_whole(a) else op.Cast(_double(a), to=ir.DataType.INT64)


def _is_whole(a: Any) -> bool:
    return isinstance(a, int) or (hasattr(a, "dtype") and a.dtype == ir.DataType.INT64)


def _whole(a: Any) -> Any:
    return op.Constant(value=ir.tensor(a, dtype=ir.DataType.INT64)) if isinstance(a, int) else a


def _number(double: Any) -> Any:
    """What tensors are multiplied with: 32 bits, as torch's translations of their operators expect."""
    shorter = op.Cast(double, to=ir.DataType.FLOAT)
    shorter.meta[_LONGER] = double
    return shorter


def _double(a: Any) -> Any:
    """`a` in 64 bits; of a number that `_number` made shorter, the one before."""
    if isinstance(a, (int, float)):
        return op.Constant(value=ir.tensor(float(a), dtype=_DOUBLE))
    return a.meta.get(_LONGER) or op.Cast(a, to=_DOUBLE)


translates("operator.add")(arithmetic("Add"))
translates("operator.sub")(arithmetic("Sub"))
translates("operator.mul")(arithmetic("Mul"))
translates("operator.pow")(arithmetic("Pow"))
translates("torch.sym_min")(arithmetic("Min"))
translates("torch.sym_max")(arithmetic("Max"))
translates("math.floor")(rounding("Floor"))
translates("math.ceil")(rounding("Ceil"))
translates("builtins.round")(rounding("Round"))
