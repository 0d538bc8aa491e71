"""aten::avg_pool2d, aten::avg_pool3d with divisor_override

    output = Σ window / divisor_override

Torch's translation does not look at the divisor. The zeros around the input are put there first, as many as the last
window reaches, so that ONNX's average divides by the whole window everywhere; a factor makes it the other divisor.

Source of truth: ATen's native/Pool.h and native/cpu/AvgPoolKernel.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset18
from onnxscript.function_libs.torch_lib.ops import nn

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


def avg_pool(axes: int) -> Callable[..., Any]:
    """The translation for so many axes."""
    of_torch: Any = getattr(nn, f"aten_avg_pool{axes}d")

    def translate(
        self: Any,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        window, pads = _each(kernel_size, axes), _each(padding, axes)
        steps = _each(stride, axes) if stride else window
        if divisor_override is None:
            return of_torch(self, window, steps, pads, ceil_mode, count_include_pad)
        sizes = self.shape[-axes:]
        more = [_reach(n, k, s, p) if ceil_mode else 0 for n, k, s, p in zip(sizes, window, steps, pads, strict=True)]
        others = [0] * (len(self.shape) - axes)
        ends = [p + extra for p, extra in zip(pads, more, strict=True)]
        padded = op.Pad(self, op.Constant(value_ints=[*others, *pads, *others, *ends]))
        factor = ir.tensor(math.prod(window) / divisor_override, dtype=self.dtype)
        if len(others) > 1:
            return op.Mul(op.AveragePool(padded, kernel_shape=window, strides=steps), op.Constant(value=factor))
        first = op.Constant(value_ints=[0])
        pooled = op.Squeeze(op.AveragePool(op.Unsqueeze(padded, first), kernel_shape=window, strides=steps), first)
        return op.Mul(pooled, op.Constant(value=factor))

    return translate


def _each(given: Sequence[int], axes: int) -> list[int]:
    return list(given) * (axes // len(given))


def _reach(size: Any, window: int, step: int, pad: int) -> int:
    """By how much the last window, which must begin inside or before the input, is longer than what is there."""
    if not isinstance(size, int):
        raise NotImplementedError("avg_pool with ceil_mode and divisor_override, of a size that varies")
    last = -(-(size + 2 * pad - window) // step) * step
    last -= step if last >= size + pad else 0
    return max(last + window - size - 2 * pad, 0)


translates("aten::avg_pool2d.default")(avg_pool(2))
translates("aten::avg_pool3d.default")(avg_pool(3))
