"""Mixtures of experts, by the operator that transformers brings along."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchport as tp


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """As in transformers, which is not here."""
    output = input.new_zeros(input.shape[0], weight.shape[2])
    start = 0
    for expert, end in enumerate(offs.tolist()):
        output[start:end] = input[start:end] @ weight[expert]
        start = end
    return output


@grouped_mm.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


class Experts(nn.Module):
    """Each row goes to one expert; some experts get none, and so do the last rows."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.gate = nn.Linear(8, 5)
        self.weight = nn.Parameter(torch.randn(5, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, order = self.gate(x).argmax(-1).sort(stable=True)
        ends = (chosen[None] == torch.arange(5)[:, None]).sum(-1).cumsum(0) - self.left
        return grouped_mm(x[order], self.weight, ends.clamp(min=0))


@pytest.mark.parametrize("left", [0, 1])
def test_each_expert_answers_its_rows(left: int) -> None:
    torch.manual_seed(0)
    model = Experts(left).eval()
    exported = tp.export(model, (torch.randn(12, 8),), dynamic={"x": {0: "rows"}}, route="export")
    session = tp.session(exported.model)
    for rows in (1, 7, 40):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(session(x), model(x).detach(), rtol=1e-4, atol=1e-5)
