"""Small constants that the optimizer takes for zero or one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchport as tp


class Normalized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8) * 1.000001


X = torch.randn(2, 8)


@pytest.mark.filterwarnings("ignore")
def test_torch_alone_loses_the_small_constant() -> None:
    program = torch.onnx.export(Normalized().eval(), (X,), dynamo=True, verbose=False)
    assert program is not None
    assert tp.session(program.model)(torch.zeros(2, 8)).isnan().all()


def test_a_small_constant_stays_in_the_graph() -> None:
    exported = tp.export(Normalized(), (X,), dynamic={"x": {0: "rows"}}, route="export")
    assert (tp.session(exported.model)(torch.zeros(3, 8)) == 0).all()
    assert "Add" in {node.op_type for node in exported.model.graph}


def test_zero_and_one_are_still_dropped() -> None:
    exported = tp.export(lambda x: (x + 0.0) * 1.0 - 0.0 + torch.relu(x), (X,), route="export")
    assert sorted(node.op_type for node in exported.model.graph) == ["Add", "Relu"]
