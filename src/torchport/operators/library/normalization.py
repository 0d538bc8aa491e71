"""aten::native_batch_norm, aten::_native_batch_norm_legit in training

    y = (x - mean) · rstd · weight + bias, rstd = 1 / √(var + eps), mean and var of the batch
    running mean += momentum · (mean - running mean); the same for the variance, of n - 1 instead of n

Torch's translation takes the running numbers, as when it is not training; and then gives them as the second and third
output, which are empty on a CPU.

Source of truth: ATen's native/Normalization.cpp.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registration import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values
HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@translates("aten::native_batch_norm.default", "aten::_native_batch_norm_legit.default")
def native_batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The result, and the mean and 1 / √(var + eps) it was made with; not in training both are empty, as on a CPU."""
    if not training:
        return _by_running(input, weight, bias, running_mean, running_var, eps)
    return _by_batch(input, weight, bias, eps)[:3]


@translates("aten::_native_batch_norm_legit_functional.default")
def functional(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The same, and the running numbers after it, which PyTorch writes in place."""
    if not training:
        result = _by_running(input, weight, bias, running_mean, running_var, eps)
        return *result, op.Identity(running_mean), op.Identity(running_var)
    y, mean, rstd, var, n = _by_batch(input, weight, bias, eps)
    one = _number(1.0, ir.DataType.FLOAT if input.dtype in HALF else input.dtype)
    unbiased = op.Mul(var, op.Div(n, op.Sub(n, one)))
    return y, mean, rstd, _moved(running_mean, mean, momentum), _moved(running_var, unbiased, momentum)


@translates("aten::_native_batch_norm_legit_no_training.default")
def no_training(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    return _by_running(input, weight, bias, running_mean, running_var, eps)


def _by_batch(input: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any, Any]:
    dtype = ir.DataType.FLOAT if input.dtype in HALF else input.dtype
    x = op.Cast(input, to=dtype)
    axes = op.Constant(value_ints=[axis for axis in range(len(input.shape)) if axis != 1])
    shape = op.Constant(value_ints=[1, -1, *[1] * (len(input.shape) - 2)])
    mean = op.ReduceMean(x, axes, keepdims=1)
    apart = op.Sub(x, mean)
    var = op.ReduceMean(op.Mul(apart, apart), axes, keepdims=1)
    rstd = op.Reciprocal(op.Sqrt(op.Add(var, _number(eps, dtype))))
    y = op.Mul(apart, rstd)
    if weight is not None:
        y = op.Mul(y, op.Reshape(op.Cast(weight, to=dtype), shape))
    if bias is not None:
        y = op.Add(y, op.Reshape(op.Cast(bias, to=dtype), shape))
    channels = op.Constant(value_ints=[-1])
    n = op.Cast(op.Div(op.Size(x), op.Shape(x, start=1, end=2)), to=dtype)
    flat = (op.Reshape(given, channels) for given in (mean, rstd, var))
    return op.Cast(y, to=input.dtype), *flat, n


def _by_running(input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, eps: float) -> Any:
    channels = op.Shape(input, start=1, end=2)
    weight = weight if weight is not None else op.Expand(_number(1.0, input.dtype), channels)
    bias = bias if bias is not None else op.Expand(_number(0.0, input.dtype), channels)
    y = op.BatchNormalization(input, weight, bias, running_mean, running_var, epsilon=eps)
    kind = ir.DataType.FLOAT if input.dtype in HALF else input.dtype
    empty = op.Constant(value=ir.tensor([], dtype=kind))
    return y, op.Identity(empty), op.Identity(empty)


def _moved(running: Any, towards: Any, momentum: float) -> Any:
    towards = op.Cast(towards, to=running.dtype)
    kept = op.Mul(running, _number(1.0 - momentum, running.dtype))
    return op.Add(kept, op.Mul(towards, _number(momentum, running.dtype)))


def _number(value: float, dtype: ir.DataType) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=dtype))
