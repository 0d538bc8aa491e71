"""Operators that order, search, count and accumulate: PyTorch's answers at sizes and types the export did not see."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchport as tp

NAN, INF = math.nan, math.inf


def check(function: Callable[..., Any], *calls: tuple[torch.Tensor, ...], dynamic: Any = None) -> None:
    """Exported with the tensors of the first call, and asked all of them."""
    session = tp.session(tp.export(function, calls[0], dynamic=dynamic, route="export").model)
    for call in calls:
        got, want = session(*call), function(*call)
        got, want = (tuple(t) if isinstance(t, (tuple, list)) else (t,) for t in (got, want))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(torch.as_tensor(a), b, equal_nan=True)


def distances(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *(torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.5, INF)), torch.nn.functional.pdist(x)


def test_distances() -> None:
    calls = [(torch.randn(n, 3), torch.randn(4, 3)) for n in (5, 1, 30)]
    check(distances, *calls, dynamic={"x": {0: "n"}})


def searches(s: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    buckets = torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0]), right=True, out_int32=True)
    return torch.searchsorted(s, x), torch.searchsorted(s, x, right=True), buckets


def test_searches() -> None:
    first = torch.randn(1, 6).sort().values, torch.randn(1, 3)
    above = torch.tensor([[1.0, 2, 2, 3, NAN]]), torch.tensor([[NAN, 2, 9]])  # NaN is above all
    unsorted = torch.randn(1, 40), torch.randn(1, 3)  # PyTorch does not look
    check(searches, first, above, unsorted, dynamic={"s": {1: "n"}})


def test_isin() -> None:
    calls = [(torch.randint(0, 9, (5, 3)), torch.randint(0, 9, (n,))) for n in (4, 0, 30)]
    check(lambda x, y: torch.isin(x, y), *calls, dynamic={"y": {0: "n"}})


def running(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.cumprod(x, 0), *torch.cummax(x, 0), *torch.cummin(x, 0), torch.logcumsumexp(x, 0)


def test_running() -> None:
    calls = [(torch.randint(-4, 4, (n, 3)).float(),) for n in (5, 9, 0)]  # several are equal
    infinite = torch.tensor([[1.0, INF, NAN], [NAN, -INF, 2.0], [3.0, 0.0, NAN]])
    out_and_back = torch.tensor([[1e30], [1e30], [1e-30], [1e-25], [0.0]]).expand(5, 3)
    check(running, *calls, (infinite,), (out_and_back,), dynamic={"x": {0: "n"}})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_running_of_other_types(dtype: torch.dtype) -> None:
    x = torch.randint(0, 4, (3, 5)).to(dtype)
    check(lambda x: (torch.cumprod(x, 1), *torch.cummax(x, 1), *torch.cummin(x, 0)), (x,))


def chosen(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *torch.median(x, 1), *torch.nanmedian(x, 1), torch.median(x), torch.kthvalue(x, 1, 1, keepdim=True).values


def test_chosen() -> None:
    calls = [(torch.randint(0, 5, (3, n)).float(),) for n in (5, 8, 1)]  # several are equal
    unknown = torch.tensor([[1.0, NAN, INF, NAN, INF], [INF, INF, NAN, -INF, 1.0], [3, 1, 1, NAN, 2]])
    check(chosen, *calls, (unknown,), dynamic={"x": {1: "n"}})


def test_chosen_of_whole_numbers() -> None:
    check(lambda x: torch.median(x, 1), (torch.randint(0, 5, (3, 8)),))


def test_mode() -> None:
    calls = [(torch.randint(0, 4, (3, n)).float(),) for n in (5, 12)]
    for call in calls:
        check(lambda x: torch.mode(x, 1), call)


def reduced(x: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
    index = torch.tensor([0, 2, 2, 3])
    ways = [("mean", True), ("mean", False), ("prod", True), ("amin", False), ("amax", False)]
    slices = [torch.index_reduce(x, 1, index, s, reduce, include_self=keep) for reduce, keep in ways]
    return [*slices, torch.scatter_reduce(x, 1, index.expand(s.shape), s, "mean", include_self=False)]


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_reduced_into_places() -> None:
    calls = [(torch.randn(n, 5), torch.randn(n, 4)) for n in (3, 6)]
    check(reduced, *calls, dynamic={"x": {0: "n"}, "s": {0: "n"}})


def test_segment_reduce() -> None:
    lengths = torch.tensor([2, 0, 3])
    reduces = ("sum", "mean", "prod", "min", "max")
    check(lambda x: [torch.segment_reduce(x, r, lengths=lengths, initial=1.5) for r in reduces], (torch.randn(5, 3),))


def test_take_and_put() -> None:
    index = torch.tensor([[0, -1], [3, 5]])
    check(
        lambda x, s: (torch.take(x, index), x.put(index, s), x.put(index, s, accumulate=True)),
        (torch.randn(3, 4), torch.randn(2, 2)),
    )


def test_nonzero() -> None:
    calls = [((torch.rand(n, 4) > 0.6).double(),) for n in (3, 30)]
    check(lambda x: (torch.nonzero(x), torch.nonzero_static(x, size=15)), *calls, dynamic={"x": {0: "n"}})


def test_unique_consecutive() -> None:
    def runs(x: torch.Tensor) -> Any:
        return torch.unique_consecutive(x, return_inverse=True, return_counts=True)

    calls = [(torch.tensor(numbers),) for numbers in ([1.0, 1, 2, 2, 2, 1], [3.0, 3, 3], [1.0])]
    check(runs, *calls, dynamic={"x": {0: "n"}})


def test_histogram() -> None:
    edges = torch.tensor([-1.0, 0.0, 0.5, 2.0])
    check(
        lambda x: (*torch.histogram(x, edges), *torch.histogram(x, 6, range=(-1.0, 1.0)), *torch.histogram(x, 7)),
        (torch.randn(30),),
        (torch.tensor([2.0, -1.0, 0.5] * 10),),
    )


def test_reductions_of_a_single_number() -> None:
    check(lambda x: x.amax(0) + x.amin(-1) * x.prod(0), (torch.randn(()),))


def test_sums_and_orders_of_truths() -> None:
    def truths(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        c = a.clone()
        c += b
        both = [a + b, a + True, (a + b[:1]).sum(), torch.add(a, b, alpha=False), sum([a, b]), c]
        return [*both, a.sort().values, torch.sort(a, descending=True).values]  # type: ignore[list-item]

    calls = [(torch.rand(n) > 0.5, torch.rand(n) > 0.5) for n in (4, 7)]
    check(truths, *calls, dynamic={"a": {0: "n"}, "b": {0: "n"}})
