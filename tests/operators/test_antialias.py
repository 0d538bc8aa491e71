"""Pictures made smaller or larger with antialiasing, by a factor that PyTorch uses as it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchport as tp
from torchport.operators.library import resampling

FACTORS = [(0.5, 0.5), (0.4, 0.75), (2.0, 1.5), (1.0, 0.9)]
SIZES = [(16, 20), (17, 23), (5, 7), (16, 3)]  # half of the last is one column, where PyTorch gives the first row


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_every_number_is_pytorchs(mode: str, factors: tuple[float, float]) -> None:
    for size in SIZES:
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(2, 3, *size, dtype=dtype)
            want = nn.functional.interpolate(x, scale_factor=factors, mode=mode, antialias=True)
            got = getattr(resampling, mode)(x, None, False, factors)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


class Smaller(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, antialias=True, **self.options)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 0.5, "mode": "bilinear"},
        {"scale_factor": 0.4, "mode": "bicubic", "recompute_scale_factor": True},
        {"size": (7, 9), "mode": "bicubic"},
    ],
)
def test_sizes_that_vary(options: dict[str, Any]) -> None:
    model = Smaller(**options)
    exported = tp.export(model, (torch.randn(2, 3, 16, 20),), dynamic={"x": {0: "n", 2: "h", 3: "w"}}, route="export")
    session = tp.session(exported.model)
    for shape in ((1, 3, 17, 20), (3, 3, 25, 31)):
        x = torch.randn(shape)
        torch.testing.assert_close(session(x), model(x), rtol=1e-3, atol=1e-5)
