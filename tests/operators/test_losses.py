"""Losses: PyTorch's answers, also where little is left of a number."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional

import torchport as tp
from torchport.operators.library.losses import cross_entropy, ctc_loss


def close(got: Any, want: Any, **tolerance: float) -> None:
    torch.testing.assert_close(torch.as_tensor(got), want, equal_nan=True, **tolerance)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 4, 3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(shape: tuple[int, ...], smoothing: float) -> None:
    x, weights = torch.randn(shape), torch.rand(4)
    classes = torch.randint(0, 4, (*shape[:1][: len(shape) - 1], *shape[2:]))
    for target, weight, (number, reduction) in itertools.product(
        (classes, torch.rand(shape)), (None, weights), enumerate(("none", "mean", "sum"))
    ):
        for ignored in (-100, 2) if target is classes else (-100,):
            got = cross_entropy(x, target, weight, number, ignored, smoothing)
            if got is not NotImplemented:
                options: Any = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
                close(got, functional.cross_entropy(x, target, weight, **options))


@pytest.mark.parametrize("size", [(20, 3, 7, 5), (5, 4, 6, 4), (1, 2, 3, 1), (9, 2, 5, 0)])
def test_ctc_loss(size: tuple[int, ...]) -> None:
    steps, batch, classes, longest = size
    logs = torch.randn(steps, batch, classes).log_softmax(-1)
    targets = torch.randint(0, classes, (batch, longest))  # PyTorch lets the blank be one
    given = torch.randint((steps + 1) // 2, steps + 1, (batch,))
    wanted = torch.randint(0, longest + 1, (batch,))
    for reduction, zero in itertools.product(("none", "mean", "sum"), (False, True)):
        arguments: Any = (logs, targets, given, wanted, 0, reduction, zero)
        close(ctc_loss(*arguments), functional.ctc_loss(*arguments), rtol=1e-4, atol=1e-4)
    together = torch.cat([row[:n] for row, n in zip(targets, wanted.tolist(), strict=True)])
    if len(together):
        lengths = given.tolist(), wanted.tolist()
        close(ctc_loss(logs, together, *lengths), functional.ctc_loss(logs, together, *lengths), rtol=1e-4, atol=1e-4)


class Losses(torch.nn.Module):
    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.binary_cross_entropy_with_logits(x, t, reduction="none"),
            functional.soft_margin_loss(x, t.sign(), reduction="none"),
            functional.logsigmoid(x),
            torch.log1p(t),
            functional.cross_entropy(x, t.softmax(1), label_smoothing=0.125),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_keep_their_digits(dtype: torch.dtype) -> None:
    first = torch.randn(3, 4, dtype=dtype), torch.rand(3, 4, dtype=dtype)
    session = tp.session(tp.export(Losses(), first, dynamic={"x": {0: "n"}, "t": {0: "n"}}, route="export").model)
    x = torch.tensor([[-104.0, -30.0, 30.0, 80.0], [0.0, -1e-8, 5.0, 1e-6]], dtype=dtype)
    t = torch.tensor([[1.0, 0.5, 1e-9, -1e-7], [-1.0, 0.0, 1e-6, 7.0]], dtype=dtype)
    for got, want in zip(session(x, t), Losses()(x, t), strict=True):
        close(got, want, rtol=2e-5 if dtype is torch.float32 else 1e-9, atol=1e-12)
