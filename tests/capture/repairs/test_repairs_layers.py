"""Repairs of what models do to their layers and modes while they run, each with the model that failed without it."""

from __future__ import annotations

import torch
from torch import nn

import torchport as tp
from torchport.capture.repairs.models import cast_layers, gradient_switches


class CastRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.router = self.router.to(torch.float32)
        return self.router(x.to(torch.float32)).softmax(-1)


def test_a_layer_that_is_cast_in_forward() -> None:
    model = CastRouter().eval()
    exported = tp.export(model, (torch.randn(3, 4),), dynamic={"x": {0: "n"}})
    assert (exported.route, exported.attempts[0].repairs) == ("export", (cast_layers.name,))
    assert isinstance(model.router, nn.Linear)


def test_a_layer_of_another_type_is_cast_before_the_capture() -> None:
    model = CastRouter().eval()
    model.router.double()
    x = torch.randn(3, 4)
    with torch.no_grad():
        expected = CastRouter.forward(model, x)
    exported = tp.export(model, (x,), dynamic={"x": {0: "n"}})
    torch.testing.assert_close(tp.session(exported.model)(x), expected)


class Ungraded(nn.Module):
    """What torch.export groups under `no_grad` loses the loop's graph."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 4)

    @torch.no_grad()
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scaled(x)
        for row in x:
            if row.sum() > 0:
                x = x + self.layer(row)
        return self.scaled(x)


def test_gradients_switched_off_beside_a_loop() -> None:
    torch.manual_seed(0)
    model = Ungraded().eval()
    exported = tp.export(model, (torch.randn(5, 4),), dynamic={"x": {0: "n"}})
    assert gradient_switches.name in exported.attempts[-1].repairs
    session = tp.session(exported.model)
    for n in (1, 3, 7):
        x = torch.randn(n, 4)
        with torch.no_grad():
            torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)
    assert torch.is_grad_enabled()
