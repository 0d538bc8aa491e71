"""Quantized embeddings: tables of 8 bits, each row with a scale and a zero point, which is no integer here.

row = (integers - zero point) · scale
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from torchport.capture.repairs.quantized_tensors import Packed, Weight


def embedding(weight: Packed, indices: Tensor, *_: Any) -> Tensor:
    own: Weight = weight.weight
    zeros, scales = (t[indices].unsqueeze(-1) for t in (own.zero_point, own.scale))
    return (own.values[indices].float() - zeros) * scales


def embedding_bag(
    weight: Packed,
    indices: Tensor,
    offsets: Tensor | None = None,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    pruned_weights: bool = False,
    per_sample_weights: Tensor | None = None,
    compressed_indices_mapping: Tensor | None = None,
    include_last_offset: bool = False,
) -> Tensor:
    """The sum of the rows of each bag; the only mode that is quantized."""
    if pruned_weights or compressed_indices_mapping is not None:
        raise NotImplementedError("a quantized embedding with pruned rows")
    if indices.dim() == 2:
        rows = embedding(weight, indices)
        return (rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)).sum(1)
    own: Weight = weight.weight
    table = (own.values.float() - own.zero_point.unsqueeze(-1)) * own.scale.unsqueeze(-1)
    options: dict[str, Any] = {"mode": "sum", "include_last_offset": include_last_offset}
    return functional.embedding_bag(indices, table, offsets, per_sample_weights=per_sample_weights, **options)
