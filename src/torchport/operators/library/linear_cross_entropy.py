"""torch_nn::_linear_cross_entropy_batch_chunked, torch_nn::_linear_cross_entropy_batch_chunked_no_reduction

    cross_entropy(x · Wᵀ + b, target)

What torch.nn.functional.linear_cross_entropy calls when it goes through the batch in chunks, which saves memory in
training and changes nothing here. The first also gives the gradients that its backward pass scales; nobody else sees
them, and they are left zero.

Source of truth: torch/nn/modules/linear_cross_entropy.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from torchport.operators.registering import composes

_DEFINED_IN = "torch.nn.modules.linear_cross_entropy"


@composes("torch_nn::_linear_cross_entropy_batch_chunked.default", defined_in=_DEFINED_IN)
def chunked(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    weight: Any,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[Any, Any, Any, Any]:
    loss = _loss(input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing)
    of_input = input.shape if compute_input_grad else (0, 0)
    of_weight = linear_weight.shape if compute_linear_weight_grad else (0, 0)
    of_bias = linear_weight.shape[:-1] if compute_linear_bias_grad else (0,)
    return loss, input.new_zeros(of_input), input.new_zeros(of_weight), input.new_zeros(of_bias)


@composes("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction.default", defined_in=_DEFINED_IN)
def unreduced(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    weight: Any,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
) -> Any:
    return _loss(input, linear_weight, target, linear_bias, weight, "none", ignore_index, 0.0)


def _loss(
    x: Any, linear: Any, target: Any, bias: Any, weight: Any, reduction: str, ignored: int, smoothing: float
) -> Any:
    logits = functional.linear(x, linear.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return functional.cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )
