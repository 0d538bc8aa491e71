"""Sizes that a package other than the model's own turns into numbers, keys or arrays."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchport as tp

LIBRARY = """
import functools, math

def shape_of(x):
    return tuple(int(size) for size in x.shape)

@functools.lru_cache(maxsize=None)
def padded(n):
    return math.ceil(n / 4) * 4

halves = {}

def half(n):
    if n not in halves:
        halves[n] = n // 2
    return halves[n]

def split(n):
    return divmod(n, 3)

def count(x):
    return len(x)
"""


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    module = types.ModuleType("a_strangers_library")
    sys.modules[module.__name__] = module
    exec(LIBRARY, vars(module))
    yield module
    del sys.modules[module.__name__]


class Calls(nn.Module):
    def __init__(self, library: Any, kind: str) -> None:
        super().__init__()
        self.library, self.kind = library, kind

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.kind == "length":
            return x.new_ones(self.library.count(x), self.library.count(x[0]), 1) * x
        if self.kind == "int":
            rows, length, width = self.library.shape_of(x)
            return x.reshape(rows * length, width) * 2
        if self.kind == "cache":
            return nn.functional.pad(x, (0, 0, 0, self.library.padded(n) - n))
        if self.kind == "dict":
            return x[:, : self.library.half(n)]
        if self.kind == "divmod":
            quotient, rest = self.library.split(n)
            return x[:, : quotient + rest]
        return x[:, : int(torch.tensor(n // 2).detach().cpu().numpy())]


@pytest.mark.parametrize("kind", ["int", "length", "cache", "dict", "divmod", "array"])
def test_sizes_stay_symbolic_in_any_package(library: Any, kind: str) -> None:
    model = Calls(library, kind)
    exported = tp.export(model, (torch.randn(2, 8, 3),), dynamic={"x": {0: "batch", 1: "n"}}, route="export")
    session = tp.session(exported.model)
    for rows, length in [(1, 6), (3, 9), (5, 17)]:
        x = torch.randn(rows, length, 3)
        assert torch.equal(session(x), model(x))


def test_a_cache_of_sizes_gives_nothing_of_another_capture(library: Any) -> None:
    model, example, dynamic = Calls(library, "cache"), torch.randn(2, 8, 3), {"x": {1: "n"}}
    first, second = (tp.export(model, (example,), dynamic=dynamic, route="export").model for _ in range(2))
    assert [n.op_type for n in first.graph] == [n.op_type for n in second.graph]
    assert library.padded(10) == 12


class Member(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[1] in (4, 8) else x * 3


class NoMember(nn.Module):
    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        if k.item() not in (1, 3, 5):
            return x + 1
        return x * 2


def test_a_size_among_a_few_is_kept_as_control_flow() -> None:
    exported = tp.export(Member(), (torch.randn(2, 8),), dynamic={"x": {1: "n"}})
    for n in (3, 4, 5, 8, 9):
        x = torch.randn(2, n)
        assert torch.equal(tp.session(exported.model)(x), Member()(x))


def test_a_value_among_a_few_is_kept_as_control_flow() -> None:
    exported = tp.export(NoMember(), (torch.randn(2, 3), torch.tensor(3)))
    for k in range(7):
        x = torch.randn(2, 3)
        assert torch.equal(tp.session(exported.model)(x, torch.tensor(k)), NoMember()(x, torch.tensor(k)))


def logarithms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = x.shape[0]
    return x * math.log(n) + math.log(n + 1, 3), x[: int(math.log2(n)) + 1], x[: int(math.log10(n)) + 1]


def test_logarithms_of_sizes_are_computed_by_the_model() -> None:
    session = tp.session(tp.export(logarithms, (torch.randn(5, 2),), dynamic={"x": {0: "n"}}).model)
    for n in (1, 3, 8, 64, 999, 1000, 1024):
        x = torch.randn(n, 2)
        for got, want in zip(session(x), logarithms(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(got), want)


def levels(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """The tables of sizes of deformable attention: a row for each level, and where each begins."""
    maps = (first, second)
    shapes = torch.tensor([m.shape[1:] for m in maps])
    starts = torch.cat((shapes.new_zeros((1,)), shapes.prod(1).cumsum(0)[:-1]))
    flat = torch.cat([m.flatten(1) for m in maps], 1)
    parts = flat.split([int(h * w) for h, w in shapes], dim=1)
    again = [p.view(-1, int(h), int(w)) * 2 for p, (h, w) in zip(parts, shapes.tolist(), strict=True)]
    return *again, flat[:, int(starts[1]) :], shapes.flip(1) * starts[1]


def test_a_table_of_sizes_gives_sizes() -> None:
    example = (torch.randn(3, 4, 5), torch.randn(3, 2, 3))
    dynamic = {"first": {1: "h", 2: "w"}, "second": {1: "h2", 2: "w2"}}
    session = tp.session(tp.export(levels, example, dynamic=dynamic, route="export").model)
    for call in (example, (torch.randn(3, 7, 2), torch.randn(3, 1, 6))):
        for got, want in zip(session(*call), levels(*call), strict=True):
            torch.testing.assert_close(torch.as_tensor(got), want)
