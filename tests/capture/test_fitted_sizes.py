"""Models whose code wants sizes to be plain numbers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchport as tp
from torchport.capture.fitted_sizes import _found
from torchport.capture.routes.export import FITTED
from torchport.errors import CaptureError


@functools.cache
def compiled(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A function with the sizes written into its source, kept by the shape, as libraries of einsum notation do it."""
    b, n, d = shape
    source = f"lambda x, ramp: x.reshape({b * n}, {d}).reshape({b}, {n}, {d}).transpose(1, 2) * {n**-0.5} + ramp({n})"
    made: Callable[..., Tensor] = eval(source)
    return lambda x: made(x, torch.arange)


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("bias", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self._once(self.layer(x))
        return x

    def _once(self, x: Tensor) -> Tensor:
        n = operator.index(x.shape[1])
        if self.bias is None or self.bias.shape[0] < n:
            self.register_buffer("bias", torch.arange(n).float(), persistent=False)
        x = compiled(tuple(map(operator.index, x.shape)))(x).transpose(1, 2) + self.bias[-n:, None]
        return torch.cat([x, x[..., :1]], dim=-1)


def test_sizes_that_are_numbers_become_formulas() -> None:
    torch.manual_seed(0)
    model = Compiled()
    exported = tp.export(model, (torch.rand(2, 9, 4),), dynamic={"x": {0: "b", 1: "n"}})
    assert exported.route == "export"
    assert FITTED in exported.attempts[-1].repairs
    assert "layer.bias" in exported.model.graph.initializers
    assert model.bias is None
    session = tp.session(exported.model)
    for b, n in ((1, 13), (4, 6), (3, 2)):
        x = torch.rand(b, n, 4)
        model.bias = None
        torch.testing.assert_close(torch.as_tensor(session(x)), model(x).detach(), rtol=1e-3, atol=1e-4)


SIZES = [[2, 9], [5, 10], [3, 5]]


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, n: n,
        lambda b, n: -n,
        lambda b, n: 3 * n + 1,
        lambda b, n: b * n,
        lambda b, n: 4 * b * n * n - 1,
        lambda b, n: b + n - 1,
        lambda b, n: n - b,
        lambda b, n: (n + 3) // 4 * 4,
        lambda b, n: n // 2,
        lambda b, n: 1 / n,
        lambda b, n: 0.5 * (b * n) ** 0.5,
    ],
)
def test_a_number_is_found_as_a_formula_of_sizes(formula: Callable[..., Any]) -> None:
    names, found = _found([formula(*row) for row in SIZES], SIZES)
    for row in ((7, 16), (1, 33), (4, 2)):
        assert found(*(row[n] for n in names)) == pytest.approx(formula(*row))


def test_numbers_without_a_formula_are_refused() -> None:
    with pytest.raises(CaptureError, match="no simple formula"):
        _found([17, 3, 1000], SIZES)
