"""Tensors written out inside a branch or a loop keep their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchport as tp


def fresh(x):
    return x.max() if x.sum() > 0 else x.new_tensor(0.25)


def listed(x):
    if x.sum() > 0:
        y = torch.tensor([1.0, -2.5, 3.0])
        y[0] = x.mean()
    else:
        y = x[0, [2, 0, 1]]
    return x * y


def whole(x):
    if x.sum() > 0:
        y = torch.tensor([[True, False, True]])
    elif x.max() > 1:
        y = torch.as_tensor([[1, 2, 3]], dtype=torch.int32) > 1
    else:
        y = torch.tensor([[2, 0, 0]]).bool()
    return x.masked_fill(y, 0.0)


def looped(x):
    total = torch.zeros(3)
    for row in x:
        if row.sum() > 0:
            total = total + row * torch.tensor([0.5, 2.0, 1.0])
        else:
            total = total - row * torch.tensor([[1.0], [2.0]]).sum()
    return total


@pytest.mark.parametrize("model", [fresh, listed, whole, looped])
def test_tensors_written_out_in_branches(model: Any) -> None:
    exported = tp.export(model, (torch.randn(4, 3),), dynamic={"x": {0: "n"}}, route="rewrite")
    session = tp.session(exported.model)
    for n in (1, 2, 6):
        for shift in (-1, 1):
            x = torch.randn(n, 3) + shift
            torch.testing.assert_close(session(x), model(x))
