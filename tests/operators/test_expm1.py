"""Digits near zero."""

from __future__ import annotations

import pytest
import torch

import torchport as tp


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.expm1(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expm1_keeps_its_digits(dtype: torch.dtype) -> None:
    exported = tp.export(model, (torch.randn(8, dtype=dtype),), dynamic={"x": {0: "n"}}, route="export")
    x = torch.tensor(
        [0, 1e-9, -1e-6, 1e-4, -0.3, 0.999, 1.0, -1.0, 5.0, -40.0, 80.0, torch.inf, -torch.inf], dtype=dtype
    )
    torch.testing.assert_close(tp.session(exported.model)(x), torch.expm1(x), rtol=2e-6, atol=0)


def test_expm1_of_whole_numbers_is_a_float() -> None:
    exported = tp.export(model, (torch.arange(4),), route="export")
    assert exported.proven
