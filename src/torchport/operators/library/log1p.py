"""aten::log1p, aten::special_xlog1py

    log(1 + x) = log(u) · x / (u - 1), u = 1 + x as it is rounded          xlog1py(x, y) = x · log(1 + y), 0 for x = 0

Torch's translation is Log(x + 1), of which nothing is left near zero: 1e-6 comes out as 9.5e-7. What rounding took from
u is given back by the quotient, which is one but for it (Kahan). Where u is one, x itself is the answer.

log1p is a translation and not a composition, because torch takes losses apart into it only while it translates.

Source of truth: PyTorch's answers, which are the C library's log1p.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18
from torch import Tensor

from torchport.operators.library.special_numbers import floating, instead, of_number_and_tensor, of_tensor_and_number
from torchport.operators.registering import composes, translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::log1p.default")
def translated(x: Any) -> Any:
    """log(1 + x) in ONNX nodes; half floats by way of float32, and whole numbers give it."""
    if x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return nodes(x, x.dtype)
    result = nodes(op.Cast(x, to=ir.DataType.FLOAT), ir.DataType.FLOAT)
    return op.Cast(result, to=x.dtype) if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else result


def nodes(x: Any, dtype: ir.DataType) -> Any:
    """The same for float32 and float64."""
    zero, one, two = (op.Constant(value=ir.tensor(number, dtype=dtype)) for number in (0.0, 1.0, 2.0))
    u = op.Add(one, x)
    lost, out = op.Equal(u, one), op.Or(op.LessOrEqual(u, zero), op.IsInf(u))
    known = op.Where(op.Or(lost, out), two, u)  # a number in range where the other branches are taken
    near = op.Mul(op.Log(known), op.Div(x, op.Sub(known, one)))
    return op.Where(lost, x, op.Where(out, op.Log(u), near))


def log1p(x: Tensor) -> Tensor:
    """log(1 + x) of real numbers, in PyTorch."""
    x = x.to(floating(x))
    if x.dtype in (torch.float16, torch.bfloat16):
        return log1p(x.float()).to(x.dtype)
    u = 1 + x
    plain = (u == 1) | (u <= 0) | torch.isinf(u)
    known = instead(u, plain, 2.0)
    near = torch.log(known) * (x / (known - 1))
    return torch.where(u == 1, x, torch.where(plain, torch.log(u), near))


@composes("aten::special_xlog1py.default")
def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """x · log(1 + y)"""
    dtype = floating(x, y)
    x, y = torch.broadcast_tensors(x.to(dtype), y.to(dtype))
    return torch.where((x == 0) & ~torch.isnan(y), torch.zeros_like(x), x * log1p(y))


composes("aten::special_xlog1py.self_scalar")(of_number_and_tensor(xlog1py))
composes("aten::special_xlog1py.other_scalar")(of_tensor_and_number(xlog1py))
