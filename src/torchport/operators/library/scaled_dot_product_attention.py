"""aten::scaled_dot_product_attention

    softmax(Q·Kᵀ·scale + mask) · V

torch 2.13's own translation takes a row in which every key is masked for one in which none is: it fills the mask
with the smallest finite number, and the softmax of equal numbers is even. PyTorch answers such a row with zeros, and
so does this: the output is set to zero wherever the mask leaves a row nothing. That costs a reduction of the mask
and one Where on the output, not on the scores. It also takes any rank, where torch's takes four.

Source of truth: `_safe_softmax` and `_scaled_dot_product_attention_math` in ATen's native/transformers/attention.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset18

from torchport.operators.registering import translates

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Translate one call; `query` and the others are the graph's values."""
    if enable_gqa:
        key, value = _repeat_heads(key, query), _repeat_heads(value, query)
    scores = _scores(query, key, scale)
    if is_causal:
        scores = op.Where(_causal(query, key), scores, _constant(-math.inf, query))
    if attn_mask is not None and attn_mask.dtype == ir.DataType.BOOL:
        scores = op.Where(attn_mask, scores, _constant(-math.inf, query))
    elif attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    weights = op.Softmax(scores, axis=-1)
    if dropout_p:
        weights, _ = op.Dropout(weights, _constant(dropout_p, query), op.Constant(value=ir.tensor(True)))
    output = op.MatMul(weights, value)
    if attn_mask is None:
        return output
    return op.Where(_row_has_a_key(attn_mask), output, _constant(0.0, query))


def _constant(number: float, like: Any) -> Any:
    return op.Constant(value=ir.tensor(number, dtype=like.dtype))


def _scores(query: Any, key: Any, scale: float | None) -> Any:
    """Query and key each take the root of the scale, as in PyTorch: their product could overflow before it."""
    rank = len(query.shape)  # the key's shape may not be known: its heads may have been repeated
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    width = query.shape[-1]
    if scale is None and isinstance(width, int):
        scale = 1 / math.sqrt(width)
    if scale is not None and query.dtype == ir.DataType.DOUBLE and isinstance(width, int):
        # One for each feature: ONNX Runtime would take a single one into the product, rounded to float32.
        factors = op.Constant(value=ir.tensor(np.full(width, scale)))
        return op.MatMul(op.Mul(query, factors), turned)
    if scale is not None:
        root = _constant(math.sqrt(abs(scale)), query)
        if scale < 0:
            query = op.Neg(query)
    else:
        size = op.Cast(op.Shape(query, start=rank - 1), to=query.dtype)
        root = op.Sqrt(op.Reciprocal(op.Sqrt(size)))
    return op.MatMul(op.Mul(query, root), op.Mul(turned, root))


def _causal(query: Any, key: Any) -> Any:
    """A key may be looked at from its own place on: row >= column."""
    rows, columns = (_range(v, len(query.shape)) for v in (query, key))
    return op.GreaterOrEqual(op.Unsqueeze(rows, op.Constant(value_ints=[1])), columns)


def _range(value: Any, rank: int) -> Any:
    length = op.Squeeze(op.Shape(value, start=rank - 2, end=rank - 1))
    return op.Range(op.Constant(value_int=0), length, op.Constant(value_int=1))


def _row_has_a_key(mask: Any) -> Any:
    """Whether the mask leaves any key to a row, keeping the last axis at size 1."""
    last = op.Constant(value_ints=[-1])
    if mask.dtype == ir.DataType.BOOL:
        return op.Cast(op.ReduceMax(op.Cast(mask, to=ir.DataType.INT32), last, keepdims=1), to=ir.DataType.BOOL)
    return op.Greater(op.ReduceMax(mask, last, keepdims=1), _constant(-math.inf, mask))


def _repeat_heads(value: Any, query: Any) -> Any:
    """Grouped queries: each head of `value` serves several of the query's, side by side."""
    rank = len(value.shape)
    heads, wanted = value.shape[-3], query.shape[-3]
    if heads == wanted:
        return value
    each = op.Unsqueeze(value, op.Constant(value_ints=[rank - 2]))
    ones = [1] * rank
    repeated = op.Expand(each, op.Constant(value_ints=[*ones[: rank - 2], wanted // heads, 1, 1]))
    front, back = op.Shape(value, end=rank - 3), op.Shape(value, start=rank - 2)
    return op.Reshape(repeated, op.Concat(front, op.Constant(value_ints=[wanted]), back, axis=0))
