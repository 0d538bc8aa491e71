"""aten::_grouped_mm, and transformers' own form of it: the experts of a mixture, each with its share of the rows.

    output[offs[e-1] : offs[e]] = input[offs[e-1] : offs[e]] · weight[e]    (the first from 0 on)

Torch's translation refuses offsets. The experts are written out one after the other, a Slice and a MatMul each:
gathering a weight for every row would take the memory of a whole matrix a row. Rows after the last offset belong to
no expert; they are zero, as in transformers' form (torch leaves them undefined).

Source of truth: `grouped_mm` in torch/nn/functional.py, `_grouped_mm_fallback` in transformers/integrations/moe.py.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::_grouped_mm.default", "transformers::grouped_mm_fallback.default")
def grouped_mm(rows: Any, weight: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Translate one call; `rows` and the others are the graph's values."""
    if offs is None:
        return _typed(op.MatMul(rows, weight), out_dtype)  # as many matrices on the left as on the right
    if len(rows.shape) != 2 or len(weight.shape) != 3 or bias is not None:
        raise NotImplementedError("grouped_mm is translated for rows and a stack of matrices only")
    ends = op.Cast(offs, to=ir.DataType.INT64)
    first = op.Constant(value_ints=[0])
    start, parts = first, []
    for expert in range(weight.shape[0]):
        end = op.Gather(ends, op.Constant(value_ints=[expert]))
        matrix = op.Gather(weight, op.Constant(value_int=expert))
        parts.append(op.MatMul(op.Slice(rows, start, end, first), matrix))
        start = end
    left = op.Sub(op.Shape(rows, start=0, end=1), start)
    zero = op.Constant(value_ints=[0])
    whole = op.Pad(op.Concat(*parts, axis=0), op.Concat(zero, zero, left, zero, axis=0))
    return _typed(whole, out_dtype)


def _typed(value: Any, dtype: Any) -> Any:
    return value if dtype is None else op.Cast(value, to=dtype)
