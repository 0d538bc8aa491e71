"""Sums and products of float16 and bfloat16 keep their type.

torch's translation casts their input to float32, as PyTorch computes in it, and forgets to cast the answer back. It
is left in its type here: ONNX has these operators in half precision, and engines add up in float32 all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.onnx._internal.fx.passes import type_promotion

_RULES = (type_promotion.ReductionTypePromotionRule, type_promotion.SumLikeReductionTypePromotionRule)


@contextlib.contextmanager
def half_reductions() -> Iterator[None]:
    """Hold while a program is translated."""
    saved = [rule.preview_type_promotion for rule in _RULES]
    for rule, own in zip(_RULES, saved, strict=True):
        rule.preview_type_promotion = _keeping(own)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for rule, own in zip(_RULES, saved, strict=True):
            rule.preview_type_promotion = own  # type: ignore[method-assign]


def _keeping(own: Any) -> Any:
    def preview(rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = own(rule, args, kwargs)
        if args[0].dtype in (torch.float16, torch.bfloat16) and kwargs.get("dtype") is None:
            return type_promotion.TypePromotionSnapshot({0: args[0].dtype}, {}, found.out_dtype)
        return found

    return preview
