"""What a capture alone would get wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchport as tp


class Encoder(nn.Module):
    """Token ids and an attention mask of ones and zeros, as tokenizers give them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.words(input_ids), src_key_padding_mask=attention_mask == 0)


IDS = torch.arange(16).reshape(2, 8)
AXES = {n: {0: "batch", 1: "length"} for n in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("route", ["export", "trace"])
@pytest.mark.parametrize("padding", [0, 3])
def test_an_encoder_answers_padding_with_zeros_as_in_pytorch(route: str, padding: int) -> None:
    torch.manual_seed(0)
    model = Encoder().eval()
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 8 - padding :] = 0
    hooks = len(model.encoder._forward_hooks)
    # A trace freezes the lengths inside nn.MultiheadAttention: only the export route can let them vary.
    exported = tp.export(model, (IDS, mask), dynamic=AXES if route == "export" else None, route=route)
    assert "padded" in {c.label for c in exported.proof.cases}
    assert len(model.encoder._forward_hooks) == hooks
    rows, length = (3, 9) if route == "export" else (2, 8)
    other = torch.tensor([[1] * 5 + [0] * (length - 5), [1] + [0] * (length - 1), [1] * length])[:rows]
    ids = torch.randint(0, 16, (rows, length))
    with torch.no_grad():
        want = model(ids, other)
    got = tp.session(exported.model)(ids, other)
    assert want[0, 5:].abs().max() == 0
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
