"""Translations torchport ships: where torch's own is missing or wrong. One file an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def translations() -> dict[Any, Callable[..., Any]]:
    """Torch operator to translation, as `torch.onnx.export` takes it in its custom translation table."""
    import torch

    from torchport.operators.library.scaled_dot_product_attention import scaled_dot_product_attention

    return {torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention}
