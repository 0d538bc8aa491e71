"""Attention: masks of every kind, transformers of torch.nn, flex_attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import check
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

ROWS = {0: "batch", 1: "steps"}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def padding(batch: int, steps: int) -> Tensor:
    """True at the end of each row but the first."""
    kept = steps - torch.arange(batch) % steps
    return torch.arange(steps) >= kept.unsqueeze(1)


class Attentions(nn.Module):
    """nn.MultiheadAttention with what it can be given, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.padded = nn.MultiheadAttention(16, 4, batch_first=True)
        self.biased = nn.MultiheadAttention(16, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
        self.causal = nn.MultiheadAttention(16, 4)
        self.crossed = nn.MultiheadAttention(16, 4, kdim=6, vdim=5, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        x, weights = self.padded(x, x, x, key_padding_mask=mask)
        x, heads = self.biased(x, x, x, attn_mask=bias, average_attn_weights=False)
        t = x.transpose(0, 1)
        triangle = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        t, _ = self.causal(t, t, t, attn_mask=triangle, is_causal=True, need_weights=False)
        y, across = self.crossed(t.transpose(0, 1), k, v)
        return y, weights, heads, across


def test_multihead_attention_with_all_it_can_be_given(tmp_path: Path) -> None:
    def given(batch: int, steps: int, keys: int) -> tuple[Tensor, ...]:
        mask, bias = padding(batch, steps), torch.randn(steps, steps)
        return torch.randn(batch, steps, 16), mask, bias, torch.randn(batch, keys, 6), torch.randn(batch, keys, 5)

    rows = {0: "batch"}
    axes = {"x": ROWS, "mask": ROWS, "bias": {0: "steps", 1: "steps"}, "k": rows, "v": rows}
    others = [given(1, 6, 5), given(5, 3, 5), given(2, 11, 5)]
    check(tmp_path, Attentions().eval(), given(3, 6, 5), others, dynamic=axes)


class Translator(nn.Module):
    """Encoder with padding, decoder with a causal mask that torch would look for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 1)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 16, batch_first=True), 1)

    def forward(self, src: Tensor, pad: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(src, src_key_padding_mask=pad)
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return self.decoder(tgt, memory, tgt_mask=mask, memory_key_padding_mask=pad)


def test_an_encoder_and_a_decoder_with_masks(tmp_path: Path) -> None:
    def given(batch: int, steps: int, target: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, steps, 16), padding(batch, steps), torch.randn(batch, target, 16)

    axes = {"src": ROWS, "pad": ROWS, "tgt": {0: "batch", 1: "target"}}
    others = [given(1, 6, 3), given(4, 3, 8), given(2, 9, 1)]
    exported, _ = check(tmp_path, Translator().eval(), given(3, 5, 7), others, dynamic=axes)
    assert "no search for causal masks" in exported.attempts[-1].repairs


def products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    grouped = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    negative = functional.scaled_dot_product_attention(q[:, :2], k, v, attn_mask=mask, scale=-0.3)
    return grouped, negative


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_dot_product_attention_with_groups_scales_and_rows_without_keys(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def given(batch: int, queries: int, keys: int) -> tuple[Tensor, ...]:
        mask = torch.rand(batch, 1, queries, keys) > 0.4
        mask[0, 0, 0] = False
        q, k, v = (torch.randn(batch, h, n, 8, dtype=dtype) for h, n in ((6, queries), (2, keys), (2, keys)))
        return q, k, v, mask

    keys = {0: "batch", 2: "keys"}
    axes = {"q": {0: "batch", 2: "queries"}, "k": keys, "v": keys, "mask": {0: "batch", 2: "queries", 3: "keys"}}
    check(tmp_path, products, given(2, 5, 7), [given(1, 4, 4), given(3, 9, 2)], dynamic=axes)


def test_flex_attention_is_written_out(tmp_path: Path) -> None:
    slopes = torch.rand(4)

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def score(s: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
            return torch.where(i >= j, s + slopes[h] * (j - i), -float("inf"))

        return flex_attention(q, k, v, score_mod=score, scale=0.4, enable_gqa=True)  # type: ignore[return-value]

    def given(batch: int, steps: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(batch, heads, steps, 8) for heads in (4, 2, 2))

    # PyTorch compiles it anew for each shape, which takes a while: one shape is asked.
    check(tmp_path, model, given(2, 5), [given(2, 5)])
