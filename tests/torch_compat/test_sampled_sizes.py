"""Long formulas of sizes: replaced and decided by their numbers, never where the numbers differ."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchport as tp
from torchport.torch_compat import sampled_sizes
from torchport.torch_compat.sampled_sizes import Samples, is_long


class Watched(nn.Module):
    """Calls a function with its input's height, while it is captured."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x.shape[0], torch.SymInt):
            self.function(x.shape[0])
        return x + 1


def captured(function: Any, size: int = 20) -> None:
    dynamic = ({0: torch.export.Dim.AUTO},)
    torch.export.export(Watched(function), (torch.ones(size),), dynamic_shapes=dynamic, strict=False)


def padded(h: Any, window: int) -> Any:
    return h + (window - h % window) % window


def test_a_long_formula_becomes_the_shorter_one_of_the_same_numbers() -> None:
    def check(h: torch.SymInt) -> None:
        samples = Samples(h.node.shape_env)
        rows = padded(padded((h + 3) // 2, 7), 5)
        five = (rows // (rows // 5)).node.expr
        assert is_long(five)
        assert samples.shortest(five) == 5
        assert samples.shortest(rows.node.expr) == rows.node.expr
        again = (rows // 5 * 5).node.expr
        assert again != rows.node.expr
        assert samples.shortest(again) == rows.node.expr

    captured(check)


def test_a_condition_that_differs_at_one_sample_is_not_decided() -> None:
    def check(h: torch.SymInt) -> None:
        samples = Samples(h.node.shape_env)
        long = padded(padded((h + 3) // 2, 7), 5).node.expr
        assert samples.answers(long >= 5) == {True}
        assert samples.answers(long < 3) == {False}
        assert samples.answers(long > 10) == {True, False}
        assert samples.answers(long > 500) == {True, False}
        assert not samples.answers(sympy.Ne(long + h.node.expr, long + 1))  # differs where h is 1

    captured(check)


def test_what_a_guard_excludes_is_no_sample() -> None:
    def check(h: torch.SymInt) -> None:
        assert h % 4 == 0  # a guard
        long = padded(padded((h // 4 + 3) // 2, 7), 5).node.expr
        samples = Samples(h.node.shape_env)
        assert samples.answers((h.node.expr % 4 + long * 0 + long) >= 5) == {True}
        assert samples.answers(h.node.expr % 4 > 0) == {False}

    captured(check)


class Windows(nn.Module):
    """Two stages of attention in shifted windows over a padded image, halved between them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(c, 3 * c) for c in (4, 8))
        self.merge = nn.Linear(16, 8)

    def stage(self, x: Tensor, qkv: nn.Module, shift: int, window: int = 4) -> Tensor:
        batch, height, width, channels = x.shape
        x = functional.pad(x, (0, 0, 0, (window - width % window) % window, 0, (window - height % window) % window))
        _, rows, columns, _ = x.shape
        x = torch.roll(x, (-shift, -shift), (1, 2))
        x = x.view(batch, rows // window, window, columns // window, window, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, channels)
        q, k, v = qkv(x).reshape(x.shape[0], window * window, 3, channels).unbind(2)
        x = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        x = x.view(batch, rows // window, columns // window, window, window, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, channels)
        return torch.roll(x, (shift, shift), (1, 2))[:, :height, :width].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage(self.stage(x, self.qkv[0], 0), self.qkv[0], 2)
        x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = self.merge(torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1))
        return self.stage(x, self.qkv[1], 2)


def test_shifted_windows_are_right_at_other_sizes_and_few_conditions_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, asked = Windows().eval(), [0]
    replacement = sampled_sizes._PATCHES["ShapeEnv._maybe_evaluate_static"]

    def counted(plain: Any) -> Any:
        def evaluate(self: Any, expr: Any, **options: Any) -> Any:
            asked[0] += is_long(expr)
            return plain(self, expr, **options)

        evaluate.cache_clear = plain.cache_clear  # type: ignore[attr-defined]
        return replacement(evaluate)

    monkeypatch.setitem(sampled_sizes._PATCHES, "ShapeEnv._maybe_evaluate_static", counted)
    dynamic = {"x": {0: "batch", 1: "height", 2: "width"}}
    exported = tp.export(model, (torch.randn(2, 18, 22, 4),), dynamic=dynamic)
    assert exported.route == "export"
    assert asked[0] < 60  # some 800 without the samples
    session = tp.session(exported.model)
    for shape in ((1, 17, 23, 4), (3, 31, 9, 4), (2, 48, 64, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


class Chooses(nn.Module):
    """A long condition that holds for the example, and not for larger images."""

    def forward(self, x: Tensor) -> Tensor:
        rows = padded(padded((x.shape[0] + 3) // 2, 7), 5)
        return x * 2 if rows < 40 else x * 3


def test_a_long_condition_on_which_the_answer_depends_is_kept_or_refused() -> None:
    model = Chooses()
    try:
        exported = tp.export(model, (torch.randn(20),), dynamic={"x": {0: "n"}})
    except tp.TorchportError:
        return
    session = tp.session(exported.model)
    for n in (3, 20, 60, 90, 200):
        x = torch.randn(n)
        torch.testing.assert_close(session(x), model(x))
