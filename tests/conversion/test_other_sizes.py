"""Where the example's size is special to a model, the model is captured at another one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchport as tp


class Anchors(nn.Module):
    """Keeps a grid while the shape stays, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)
        self.shape: Any = None
        self.grid = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.shape != y.shape:
            self.grid = torch.arange(y.shape[2], dtype=x.dtype)[:, None] + torch.arange(y.shape[3], dtype=x.dtype)
            self.shape = y.shape
        return y + self.grid


class Masked(nn.Module):
    """Has a mask for the resolution it was made for, and computes others."""

    def __init__(self) -> None:
        super().__init__()
        self.resolution = (16, 16)
        self.register_buffer("mask", self.made(16, 16))

    def made(self, h: int, w: int) -> Tensor:
        mask = torch.zeros(1, h, w)
        mask[:, : h // 2] = 1
        return mask

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[2], x.shape[3])
        return x * (self.mask if size == self.resolution else self.made(*size))


@pytest.mark.parametrize("kind", [Anchors, Masked])
def test_a_model_for_which_the_examples_size_is_special(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, example = kind(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        model(example)  # as users do before they export
    exported = tp.export(model, (example,), dynamic={"x": {0: "batch", 2: "height", 3: "width"}})
    assert exported.route == "export"
    session = tp.session(exported.model)
    for shape in [(1, 3, 16, 16), (3, 3, 22, 17), (2, 3, 40, 9)]:
        x = torch.randn(shape)
        with torch.no_grad():
            assert torch.allclose(session(x), kind.forward(model, x), rtol=1e-3, atol=1e-5)


def test_the_model_is_as_before() -> None:
    model, example = Anchors(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        model(example)
    grid, shape = model.grid, model.shape
    tp.export(model, (example,), dynamic={"x": {2: "height"}})
    assert model.grid is grid
    assert model.shape is shape
