"""torch's flex_attention, written out: ONNX has no operator that takes functions for scores and masks.

    softmax(where(mask(b, h, q, k), score(Q·Kᵀ · scale, b, h, q, k), -∞)) · V

PyTorch calls the two functions on single numbers, mapped over all of them. Here they get whole tensors, and the places
b, h, q and k as ranges along their own axis, which comes to the same for functions of numbers.

Source of truth: `math_attention` in torch/_higher_order_ops/flex_attention.py.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchport.capture.repairs.repair import capture_repair

_MODULE = "torch.nn.attention.flex_attention"


@capture_repair("flex_attention written out")
@contextlib.contextmanager
def flex_attention(target: Any) -> Iterator[bool]:
    module: Any = sys.modules.get(_MODULE)  # who does not use it has not imported it
    if module is None:
        yield False
        return
    operator, plain = module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _attention, True
    try:
        yield _names_it(target)
    finally:
        module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = operator, plain


def _names_it(target: Any) -> bool:
    """Whether a forward of the model calls it by its name. One that helpers call is written out all the same."""
    functions = [type(m).forward for m in target.modules()] if isinstance(target, torch.nn.Module) else [target]
    codes = [getattr(f, "__code__", None) for f in functions]
    return any(code is not None and "flex_attention" in (*code.co_names, *code.co_freevars) for code in codes)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """In the place of the operator: the output, the logarithm of the sums and the largest scores."""
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
    places = [
        torch.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]) for axis, n in enumerate(scores.shape)
    ]
    allowed = block_mask[-1](*places, *mask_mod_other_buffers)
    scores = torch.where(allowed, score_mod(scores, *places, *score_mod_other_buffers), -math.inf)
    largest = scores.amax(-1)
    empty = (largest == -math.inf).unsqueeze(-1)
    weights = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, scores), -1))
    sums = torch.logsumexp(scores, -1)
    return (weights.to(query.dtype) @ value).to(query.dtype), sums / math.log(2), largest / math.log(2)
