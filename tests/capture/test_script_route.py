"""Numbers that a compiled model gives are tensors without axes, as on every route."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import torchport as tp


class Found(NamedTuple):
    y: torch.Tensor
    count: int


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, each: int = 2, mode: str = "plain"):
        count = 0
        for i in range(x.size(0)):
            if bool(x[i].sum() > 0):
                count += each
        return Found(self.layer(x), count), (float(x.size(0)) / 4, count > 2), mode


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return x.size(0)


def half(x: torch.Tensor):
    return x * 2, x.size(0) // 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("make", [Counting, Rows, lambda: half], ids=["nested", "one", "function"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_numbers_of_a_compiled_model(make: Any, compiled: bool) -> None:
    model = torch.jit.script(make()) if compiled else make()
    exported = tp.export(model, (torch.randn(4, 3),), dynamic={"x": {0: "n"}}, route="script")
    names = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    assert set(exported.model.graph.initializers) >= set(names)
    session = tp.session(exported.model)
    for n in (1, 2, 7):
        x = torch.randn(n, 3)
        for got, want in zip(session.run({"x": x.numpy()}).values(), _numbers(model(x)), strict=True):
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want).detach())


def _numbers(answer: Any) -> list[Any]:
    if isinstance(answer, tuple):
        return [leaf for part in answer for leaf in _numbers(part)]
    return [] if isinstance(answer, str) else [answer]
