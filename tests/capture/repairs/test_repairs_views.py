"""A `view` over strides that the capture assumes differently."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchport as tp
from torchport.capture.repairs.views import strided_views, views_as_reshapes


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
    assert views_as_reshapes.name in exported.attempts[0].repairs


@pytest.mark.parametrize("captured", [False, True])
def test_attention_with_a_learned_bias_needs_no_repair(captured: bool) -> None:
    model = Biased().eval()
    given = torch.export.export(model, (X,), dynamic_shapes=AUTO, strict=False) if captured else model
    exported = tp.export(given, (X,), dynamic={"x": {0: "batch"}}, route="export")
    assert views_as_reshapes.name not in exported.attempts[0].repairs


class Windows(nn.Module):
    """Overlapping windows along the second axis, as Longformer cuts them."""

    def __init__(self, *, flipped: bool) -> None:
        super().__init__()
        self.flipped = flipped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if self.flipped:
            x = x.transpose(0, 1)  # the storage keeps its order
        x = x.view(x.shape[0], x.shape[1] // 4, 4, x.shape[2])
        size, stride = list(x.size()), list(x.stride())
        size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
        return x.as_strided(size, stride)


@pytest.mark.parametrize("route", ["export", "rewrite", "trace"])
@pytest.mark.parametrize("flipped", [False, True])
def test_overlapping_windows_of_a_view(flipped: bool, route: str) -> None:
    shape, axis = ((8, 3, 5), 1) if flipped else ((3, 8, 5), 0)
    x = torch.randn(shape)
    windows = 4 * torch.export.Dim("windows", max=100)
    dynamic = {"x": {axis: "batch", 1 - axis: windows}} if route != "trace" else None
    model: nn.Module = Windows(flipped=flipped)
    if route == "rewrite":
        model = WindowsOfPositive(model)
    exported = tp.export(model, (x,), dynamic=dynamic, route=route)
    assert exported.proof.passed
    assert strided_views.name in exported.attempts[-1].repairs


class WindowsOfPositive(nn.Module):
    def __init__(self, windows: nn.Module) -> None:
        super().__init__()
        self.windows = windows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.windows(x)
        return self.windows(-x)


def test_a_view_of_storage_that_is_not_all_there_is_left_to_torch() -> None:
    class Gap(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2)[:, ::2].as_strided((2, 2), (1, 1))

    exported = tp.export(Gap(), (torch.randn(4, 6),), allow_unproven=True)
    assert strided_views.name not in exported.attempts[-1].repairs
