"""Parts of a tensor along an axis that varies."""

from __future__ import annotations

import torch

import torchport as tp


def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    doubled = torch.cat([x, x * 2], -1)
    first, second = doubled.chunk(2, -1)
    return first * torch.sigmoid(second), x.chunk(3, 0)[0], x.split((x.shape[0] + 1) // 2)[0]


def test_chunks_and_splits_of_sizes_that_vary() -> None:
    dynamic = {"x": {0: "n", 1: "m"}}
    session = tp.session(tp.export(parts, (torch.randn(4, 6),), dynamic=dynamic, route="export").model)
    for n, m in ((1, 1), (5, 3), (8, 7)):
        x = torch.randn(n, m)
        for got, want in zip(session(x), parts(x), strict=True):
            torch.testing.assert_close(got, want)
