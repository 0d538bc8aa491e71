"""Arithmetic on sizes: as Python computes, at every size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import torchport as tp


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        numbers = (
            math.floor(n * 0.29),  # 28 at 100 in float64, 29 in float32
            -(-n // 3),  # rounds up; towards zero would round down
            -n % 4,
            round(n * 0.5),
            math.ceil(n / 7 + 0.25),
            n**2 // 5,
        )
        return tuple(x.new_ones(number) for number in numbers)


def test_sizes_are_computed_as_in_python() -> None:
    exported = tp.export(Sizes(), (torch.randn(50),), dynamic={"x": {0: "n"}}, route="export")
    session = tp.session(exported.model)
    for n in range(1, 130):
        x = torch.zeros(n)
        assert [len(t) for t in session(x)] == [len(t) for t in Sizes()(x)], n


def test_a_float_made_of_sizes_scales_a_tensor() -> None:
    exported = tp.export(lambda x: x * (x.shape[0] * 0.5) / x.shape[0], (torch.randn(6),), dynamic={"x": {0: "n"}})
    assert tp.session(exported.model)(torch.ones(9)) == pytest.approx(torch.full((9,), 0.5))
