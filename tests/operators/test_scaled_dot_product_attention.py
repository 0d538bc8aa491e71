"""The shipped translation of attention, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import torchport as tp


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def tensors(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator) for shape in shapes)


BATCH_AND_LENGTH = {n: {0: "batch", 2: "length"} for n in "qkv"}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"is_causal": True, "scale": 2.0}])
def test_attention_agrees_at_unseen_batches_and_lengths(options: dict[str, object]) -> None:
    q, k, v = tensors((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    exported = tp.export(Attention(**options), (q, k, v), dynamic=BATCH_AND_LENGTH, route="export")
    assert exported.proof.passed


def test_attention_takes_three_dimensions() -> None:
    q, k, v = tensors((2, 6, 8), (2, 5, 8), (2, 5, 8))
    assert tp.export(Attention(), (q, k, v), dynamic={n: {0: "batch"} for n in "qkv"}, route="export").proof.passed


def test_attention_shares_heads_between_grouped_queries() -> None:
    q, k, v = tensors((2, 8, 6, 4), (2, 2, 6, 4), (2, 2, 6, 4))
    assert tp.export(Attention(enable_gqa=True), (q, k, v), dynamic=BATCH_AND_LENGTH, route="export").proof.passed


def test_a_row_with_every_key_masked_is_zero_as_in_pytorch() -> None:
    q, k, v = tensors((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[0, :, 2] = False
    exported = tp.export(Attention(), (q, k, v, mask), route="export")
    session = tp.session(exported.model)
    assert session(q, k, v, mask)[0, :, 2].abs().max() == 0
    torch.testing.assert_close(session(q, k, v, mask), Attention()(q, k, v, mask), rtol=1e-4, atol=1e-6)


def test_a_float_mask_of_minus_infinity_is_zero_too() -> None:
    q, k, v = tensors((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    mask = torch.zeros(2, 1, 6, 6)
    mask[1, :, 3] = -torch.inf
    mask[:, :, :, 0] = -torch.inf
    exported = tp.export(Attention(), (q, k, v, mask), route="export")
    torch.testing.assert_close(
        tp.session(exported.model)(q, k, v, mask), Attention()(q, k, v, mask), rtol=1e-4, atol=1e-6
    )
