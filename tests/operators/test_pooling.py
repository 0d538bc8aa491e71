"""Pooling and sampling: PyTorch's answers at sizes the export did not see."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import torchport as tp


def check(function: Callable[..., Any], *calls: tuple[torch.Tensor, ...], dynamic: Any = None) -> None:
    """Exported with the tensors of the first call, and asked all of them."""
    session = tp.session(tp.export(function, calls[0], dynamic=dynamic, route="export").model)
    for call in calls:
        got, want = session(*call), function(*call)
        got, want = (tuple(t) if isinstance(t, (tuple, list)) else (t,) for t in (got, want))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(torch.as_tensor(a), b)


def test_adaptive_max_pool2d_of_sizes_that_vary() -> None:
    calls = [(torch.randn(2, 3, *size),) for size in ((7, 5), (13, 8), (2, 3), (6, 6))]
    dynamic = {"x": {2: "h", 3: "w"}}
    check(lambda x: functional.adaptive_max_pool2d(x, (3, 2), return_indices=True), *calls, dynamic=dynamic)


def maxima(x: torch.Tensor) -> list[torch.Tensor]:
    line, image, volume = x[0, 0], x[0], x
    pools = (
        functional.adaptive_max_pool1d(line, 4, return_indices=True),
        functional.adaptive_max_pool2d(image, (3, 2), return_indices=True),
        functional.adaptive_max_pool2d(image, (4, 5), return_indices=True),
        functional.adaptive_max_pool3d(volume, (2, 3, 4), return_indices=True),
    )
    return [tensor for pool in pools for tensor in pool]


def test_adaptive_max_pool_names_the_places() -> None:
    equal = torch.randint(0, 3, (2, 3, 9, 6)).double()  # of equal numbers the first
    check(maxima, (torch.randn(2, 3, 9, 6, dtype=torch.float64),), (equal,))


def test_adaptive_avg_pool3d() -> None:
    calls = [(torch.randn(1, 2, *size),) for size in ((5, 4, 3), (7, 9, 3))]
    check(lambda x: functional.adaptive_avg_pool3d(x, (2, 3, 2)), *calls, dynamic={"x": {2: "d", 3: "h"}})


def test_fractional_pooling_takes_the_first_samples_where_more_are_given_than_pictures() -> None:
    plane, volume = torch.rand(2, 4, 2), torch.rand(3, 4, 3)

    def pools(x: torch.Tensor) -> list[torch.Tensor]:
        flat = functional.fractional_max_pool2d(x[:, 0], 2, output_size=(3, 2), _random_samples=plane)
        whole = functional.fractional_max_pool3d(x, 2, output_size=(2, 4, 4), _random_samples=volume)
        return [flat, whole, functional.fractional_max_pool3d(x[None], 2, output_size=2, _random_samples=volume)]

    check(pools, (torch.randn(4, 5, 6, 7),))


WAYS = [*itertools.product((2, 3), (0, 1), (False, True))]


def test_avg_pool_with_a_divisor() -> None:
    x = torch.randn(1, 2, 7, 8)
    check(lambda x: [functional.avg_pool2d(x, 3, *way, divisor_override=2) for way in WAYS], (x,))


def test_avg_pool3d_with_a_divisor_of_sizes_that_vary() -> None:
    calls = [(torch.randn(2, n, 6, 7),) for n in (5, 8)]
    check(lambda x: functional.avg_pool3d(x, 2, padding=1, divisor_override=5), *calls, dynamic={"x": {1: "n"}})


PADDINGS = [("zeros", False), ("border", False), ("reflection", True)]


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample_of_volumes(mode: str) -> None:
    calls = [(torch.randn(1, 2, *s, 6), torch.rand(1, n, 2, 4, 3) * 3 - 1.5) for s, n in (((5, 4), 3), ((7, 5), 9))]
    dynamic = {"x": {2: "d", 3: "h"}, "g": {1: "n"}} if mode == "nearest" else None
    calls = calls if mode == "nearest" else calls[:1]
    check(lambda x, g: [functional.grid_sample(x, g, mode, *way) for way in PADDINGS], *calls, dynamic=dynamic)


def test_grid_sample_of_images_stays() -> None:
    x, g = torch.randn(2, 3, 5, 4), torch.rand(2, 3, 6, 2) * 3 - 1.5
    check(lambda x, g: functional.grid_sample(x, g, align_corners=False), (x, g))
