"""Scaled dot-product attention, grouped matrix products, pairwise distances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.registration import composes, translates

# aten::scaled_dot_product_attention
#
#     softmax(Q·Kᵀ·scale + mask) · V
#
# torch 2.13's own translation takes a row in which every key is masked for one in which none is: it fills the mask
# with the smallest finite number, and the softmax of equal numbers is even. PyTorch answers such a row with zeros, and
# so does this: the output is set to zero wherever the mask leaves a row nothing. That costs a reduction of the mask
# and one Where on the output, not on the scores. It also takes any rank, where torch's takes four.
#
# Source of truth: `_safe_softmax` and `_scaled_dot_product_attention_math` in ATen's native/transformers/attention.cpp.

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


# aten::_grouped_mm, and transformers' own form of it: the experts of a mixture, each with its share of the rows.
#
#     output[offs[e-1] : offs[e]] = input[offs[e-1] : offs[e]] · weight[e]    (the first from 0 on)
#
# Torch's translation refuses offsets. The experts are written out one after the other, a Slice and a MatMul each:
# gathering a weight for every row would take the memory of a whole matrix a row. Rows after the last offset belong to
# no expert; they are zero, as in transformers' form (torch leaves them undefined).
#
# Source of truth: `grouped_mm` in torch/nn/functional.py, `_grouped_mm_fallback` in transformers/integrations/moe.py.


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


# aten::cdist, aten::pdist, and what torch takes them apart into
#
#     distance(a, b) = (Σ |aᵢ - bᵢ|ᵖ)^(1/p)     p = 0: how many differ, p = ∞: the largest
#
# cdist of every row of one matrix to every row of the other, pdist of the pairs of one matrix, (0, 1), (0, 2) ... (1,
# 2). For many rows and p = 2 PyTorch takes |a|² + |b|² - 2a·b, which needs no tensor of all differences; so does this,
# in 64 bits, where the distance of near points keeps its digits.
#
# Source of truth: ATen's native/Distance.cpp.

_FEW = 25  # rows up to which PyTorch takes differences
_NEVER_BY_PRODUCTS = 2  # of compute_mode


@composes("aten::cdist.default", "aten::_cdist_forward.default")
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
    if p == 2 and compute_mode != _NEVER_BY_PRODUCTS and not (_is_few(x1) and _is_few(x2)):
        return _by_products(x1.double(), x2.double()).to(x1.dtype)
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@composes("aten::pdist.default", "aten::_pdist_forward.default")
def pdist(self: Any, p: float = 2.0) -> Any:
    first, second = _pairs(self.shape[0], self.device)
    difference = self.index_select(0, first) - self.index_select(0, second)
    return _norm(torch.nn.functional.pad(difference, (0, 0, 0, 1)), p)[:-1]  # one row has no pairs to reduce


def _is_few(x: Any) -> bool:
    rows = x.shape[-2]
    return isinstance(rows, int) and rows <= _FEW


def _by_products(x1: Any, x2: Any) -> Any:
    squares = (x1 * x1).sum(-1).unsqueeze(-1) + (x2 * x2).sum(-1).unsqueeze(-2)
    return (squares - 2 * (x1 @ x2.mT)).clamp(min=0).sqrt()


def _norm(difference: Any, p: float) -> Any:
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1 or difference.shape[-1] == 0:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def _pairs(count: Any, device: torch.device) -> tuple[Any, Any]:
    """Both rows of each pair. Row i begins at i·(2n - i - 1)/2; solved for i in floats, then put right by one."""
    place = torch.arange(count * (count - 1) // 2, device=device)
    odd = 2 * count - 1
    row = ((odd - (odd * odd - 8 * place).double().sqrt()) / 2).long()
    row = row - (_begin(row, count) > place).long()
    row = row + (_begin(row + 1, count) <= place).long()
    return row, place - _begin(row, count) + row + 1


def _begin(row: Any, count: Any) -> Any:
    return (row * (2 * count - 1 - row)) // 2
