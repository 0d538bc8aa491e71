"""Models that take gradients while they run: forces of an energy, Jacobians."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchport as tp


class Energy(nn.Module):
    def __init__(self, force: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.force = force

    def energy(self, positions: Tensor) -> Tensor:
        apart = (positions[:, None] - positions[None] + torch.eye(positions.shape[0])[..., None]).norm(dim=-1)
        return self.net(torch.stack([apart, apart**2, (-apart).exp()], -1)).sum()

    def forward(self, positions: Tensor) -> Tensor:
        return self.force(self, positions)


def by_grad(model: Energy, positions: Tensor) -> Tensor:
    positions.requires_grad_(True)
    return -torch.autograd.grad(model.energy(positions), positions)[0]


def by_backward(model: Energy, positions: Tensor) -> Tensor:
    with torch.enable_grad():
        positions = positions.detach().requires_grad_()
        model.energy(positions).backward()
    return -positions.grad


def by_function(model: Energy, positions: Tensor) -> Tensor:
    return -torch.func.grad(lambda x: model.net(x).sum())(positions)


def by_jacobian(model: Energy, positions: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.jacrev(model.net))(positions)


@pytest.mark.parametrize("force", [by_grad, by_backward, by_function, by_jacobian])
def test_gradients_taken_in_forward_are_part_of_the_graph(force: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Energy(force).eval()
    exported = tp.export(model, (torch.randn(5, 3),), dynamic={"positions": {0: "atoms"}}, route="export")
    assert all(weight.grad is None for weight in model.parameters())
    session = tp.session(exported.model)
    for atoms in (2, 5, 9):
        positions = torch.randn(atoms, 3)
        got = torch.as_tensor(session(positions.clone()))
        torch.testing.assert_close(got, model(positions.clone()).detach(), rtol=1e-3, atol=1e-5)
