"""quantized_decomposed::quantize_per_tensor, dequantize_per_tensor, ..._per_channel, choose_qparams

What PT2E's convert leaves in a graph. torch 2.13's own translation drops quant_min and quant_max: an observer with a
reduced range (0 to 127 in uint8) is then not clipped where it should be. Here

    q = QuantizeLinear(clip(x, (quant_min - zero point) · scale, (quant_max - zero point) · scale), scale, zero point)

the clip only where the range is narrower than the type's. It comes before the quantization, in floats, so that engines
still see a quantization and its inverse side by side.

    choose_qparams             scale = max((max(x, 0) - min(x, 0)) / (quant_max - quant_min), eps)
                               zero point = clip(quant_min - round(min(x, 0) / scale), quant_min, quant_max)
    choose_qparams_symmetric   scale = max(max(-min(x, 0), max(x, 0)) / ((quant_max - quant_min) / 2), eps)

The operators come with torch.ao's or torchao's PT2E.

Source of truth: torch/ao/quantization/fx/_decomposed.py and `determine_qparams` in torch/ao/quantization/utils.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registration import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values

_RANGES = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127), ir.DataType.INT16: (-32768, 32767)}


@translates(
    "quantized_decomposed::quantize_per_tensor.default",
    "quantized_decomposed::quantize_per_tensor.tensor",
    "quantized_decomposed::quantize_per_tensor.tensor2",
)
def quantize_per_tensor(x: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: int) -> Any:
    """Translate one call; scale and zero point may be numbers or values of the graph."""
    scale, zero_point = _scalar(scale, ir.DataType.FLOAT), _scalar(zero_point, ir.DataType(dtype))
    return _quantize(x, scale, zero_point, quant_min, quant_max, ir.DataType(dtype), axis=None)


@translates(
    "quantized_decomposed::dequantize_per_tensor.default",
    "quantized_decomposed::dequantize_per_tensor.tensor",
    "quantized_decomposed::dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    q: Any,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: int,
    out_dtype: int | None = None,
) -> Any:
    """Translate one call. quant_min and quant_max do not matter here, as in PyTorch."""
    answer = op.DequantizeLinear(q, _scalar(scale, ir.DataType.FLOAT), _scalar(zero_point, ir.DataType(dtype)))
    return _as(answer, out_dtype)


@translates("quantized_decomposed::quantize_per_channel.default")
def quantize_per_channel(
    x: Any, scales: Any, zero_points: Any, axis: int, quant_min: Any, quant_max: Any, dtype: int
) -> Any:
    """Translate one call; each place along `axis` has its own scale."""
    scales, zero_points = op.Cast(scales, to=ir.DataType.FLOAT), op.Cast(zero_points, to=dtype)
    return _quantize(x, scales, zero_points, quant_min, quant_max, ir.DataType(dtype), axis=axis % len(x.shape))


@translates("quantized_decomposed::dequantize_per_channel.default")
def dequantize_per_channel(
    q: Any,
    scales: Any,
    zero_points: Any,
    axis: int,
    quant_min: Any,
    quant_max: Any,
    dtype: int,
    out_dtype: int | None = None,
) -> Any:
    """Translate one call."""
    zero_points = None if zero_points is None else op.Cast(zero_points, to=dtype)
    scales = op.Cast(scales, to=ir.DataType.FLOAT)
    return _as(op.DequantizeLinear(q, scales, zero_points, axis=axis % len(q.shape)), out_dtype)


@translates("quantized_decomposed::choose_qparams.tensor")
def choose_qparams(x: Any, quant_min: int, quant_max: int, eps: float, dtype: int) -> Any:
    """Translate choose_qparams.tensor: scale in float64 and zero point in int64, of one element each."""
    low, high = _extremes(x)
    scale = op.Max(op.Div(op.Sub(high, low), _float(quant_max - quant_min)), _float(eps))
    zero_point = op.Sub(_float(quant_min), op.Round(op.Div(low, scale)))
    zero_point = op.Clip(zero_point, _float(quant_min, ()), _float(quant_max, ()))
    return op.Cast(scale, to=ir.DataType.DOUBLE), op.Cast(zero_point, to=ir.DataType.INT64)


@translates("quantized_decomposed::choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(x: Any, quant_min: int, quant_max: int, eps: float, dtype: int) -> Any:
    """Translate choose_qparams_symmetric.tensor: the zero point is in the middle."""
    low, high = _extremes(x)
    scale = op.Max(op.Div(op.Max(op.Neg(low), high), _float((quant_max - quant_min) / 2)), _float(eps))
    middle = 128 if ir.DataType(dtype) == ir.DataType.UINT8 else 0
    return op.Cast(scale, to=ir.DataType.DOUBLE), op.Constant(value_ints=[middle])


def _extremes(x: Any) -> tuple[Any, Any]:
    """The smallest and the largest number with zero among them, of one element each."""
    flat = op.Cast(op.Reshape(x, op.Constant(value_ints=[-1])), to=ir.DataType.FLOAT)
    first = op.Constant(value_ints=[0])
    low, high = op.ReduceMin(flat, first, keepdims=1), op.ReduceMax(flat, first, keepdims=1)
    return op.Min(low, _float(0.0)), op.Max(high, _float(0.0))


def _float(number: float, shape: tuple[int, ...] = (1,)) -> Any:
    return op.Constant(value=ir.tensor(np.full(shape, number, np.float32)))


def _scalar(number: Any, dtype: ir.DataType) -> Any:
    """A number as a constant; a value of the graph, which has one element, without its axis."""
    if isinstance(number, (int, float)):
        return op.Constant(value=ir.tensor(np.array(number, dtype.numpy())))
    return op.Reshape(op.Cast(number, to=dtype), op.Constant(value=ir.tensor(np.array([], np.int64))))


def _quantize(
    x: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: ir.DataType, axis: int | None
) -> Any:
    x = op.Cast(x, to=ir.DataType.FLOAT)
    if not isinstance(quant_min, int) or (quant_min, quant_max) != _RANGES[dtype]:
        x = _clipped(x, scale, zero_point, quant_min, quant_max, axis)
    return op.QuantizeLinear(x, scale, zero_point, **({} if axis is None else {"axis": axis}))


def _clipped(x: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, axis: int | None) -> Any:
    zero = op.Cast(zero_point, to=ir.DataType.FLOAT)
    for limit, choose in ((quant_min, op.Max), (quant_max, op.Min)):
        end = op.Mul(op.Sub(_scalar(limit, ir.DataType.FLOAT), zero), scale)
        if axis is not None:  # along its own axis, spread over all others
            end = op.Unsqueeze(end, op.Constant(value_ints=list(range(1, len(x.shape) - axis))))
        x = choose(x, end)
    return x


def _as(answer: Any, dtype: int | None) -> Any:
    return answer if dtype in (None, -1, ir.DataType.FLOAT) else op.Cast(answer, to=dtype)
