"""A `view` over strides that the capture assumes differently."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchport as tp
from torchport.capture.repairs import views_as_reshapes


class Viewed(nn.Module):
    """In eval mode nn.MultiheadAttention answers in one layout when run, and in another when captured."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer, _ = self.attention(x, x, x)
        return answer.view(x.shape[0], -1) * 2


class Biased(nn.Module):
    """Attention with a learned bias, as in T5 and BEiT: with gradients torch takes it apart, into other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 4, 6, 6))
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part(x).view(x.shape[0], 6, 4, 8).transpose(1, 2) for part in (self.query, self.key, self.value)]
        answer = functional.scaled_dot_product_attention(*heads, attn_mask=self.bias * 1.0)
        return answer.transpose(1, 2).contiguous().reshape(x.shape[0], 6, -1)


X = torch.randn(2, 6, 32)
AUTO = ({0: torch.export.Dim.AUTO},)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [Viewed(), Biased()])
def test_torch_alone_stumbles_over_the_view(model: nn.Module) -> None:
    with pytest.raises(Exception, match="Cannot view a tensor"):
        torch.onnx.export(model.eval(), (X,), dynamo=True, dynamic_shapes=AUTO, verbose=False)


def test_a_view_that_the_capture_refuses_becomes_a_reshape() -> None:
    exported = tp.export(Viewed(), (X,), dynamic={"x": {0: "batch"}}, route="export")
    assert views_as_reshapes.NAME in exported.attempts[0].repairs


@pytest.mark.parametrize("captured", [False, True])
def test_attention_with_a_learned_bias_needs_no_repair(captured: bool) -> None:
    model = Biased().eval()
    given = torch.export.export(model, (X,), dynamic_shapes=AUTO, strict=False) if captured else model
    exported = tp.export(given, (X,), dynamic={"x": {0: "batch"}}, route="export")
    assert views_as_reshapes.NAME not in exported.attempts[0].repairs
