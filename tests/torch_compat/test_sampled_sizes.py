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


def test_samples_are_drawn_again_where_guards_allow_multiples_only() -> None:
    def check(h: torch.SymInt) -> None:
        samples = Samples(h.node.shape_env)
        height = h.node.expr
        long = padded(padded((h + 3) // 2, 7), 5).node.expr
        assert samples.shortest(long) == long
        assert samples.answers(long * (height % 16) > 0) == {True, False}
        assert h % 16 == 0  # a guard that few of the samples pass
        assert h // 16 > 1
        assert samples.answers(long * (height % 16) > 0) == {False}
        assert samples.answers(long + height > 100) == {True, False}
        assert samples.shortest(long + 1 - long * (height % 16) - 1) == long

    captured(check, size=64)


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


def test_a_whole_number_of_a_quotient_is_the_size_of_the_same_numbers() -> None:
    def check(h: torch.SymInt) -> None:
        samples, rows = Samples(h.node.shape_env), padded(h, 4)

        def found(whole: Any) -> Any:
            return samples.shortest(whole.node.expr)

        assert found(torch.sym_int(h * (rows // 4) / (rows * 8 / 8 / 4))) == h.node.expr
        assert found(torch.sym_int(h * h / (h / 1))) == h.node.expr
        other = torch.sym_int(h * h / (h + 1))  # h - 1
        assert found(other) == other.node.expr
        inexact = torch.sym_int(h * (1 / (h / 49)) / (1 / h))  # in floats 49 * h * h, or one less
        assert found(inexact) == inexact.node.expr

    captured(check)


def test_a_quotient_is_compared_at_the_sizes_that_guards_allow() -> None:
    def check(h: torch.SymInt) -> None:
        env = h.node.shape_env
        whole = torch.sym_int(h * (h // 4) / (h / 4)).node.expr
        assert Samples(env).shortest(whole) == whole
        assert h % 4 == 0  # a guard
        assert Samples(env).shortest(whole) == h.node.expr

    captured(check)


class Restores(nn.Module):
    """Shifted windows, whose batch is found again from their number; a mask is kept for images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)
        self.register_buffer("mask", self.mask_of(8, 8))

    def mask_of(self, rows: int, columns: int) -> Tensor:
        number = torch.zeros(1, rows, columns, 1)
        number[:, -2:] += 1
        number[:, :, -2:] += 2
        return self.windows(number).squeeze(-1) / 4

    def windows(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        return x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)

    def joined(self, windows: Tensor, h: int, w: int) -> Tensor:
        b = int(windows.shape[0] / (h * w / 4 / 4))
        return windows.view(b, h // 4, w // 4, 4, 4, -1).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, -1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        down, right = (4 - height % 4) % 4, (4 - width % 4) % 4
        if down or right:
            x = functional.pad(x, (0, right, 0, down), "reflect")
        x = torch.roll(x.permute(0, 2, 3, 1), (-2, -2), (1, 2))
        size = x.shape[1], x.shape[2]
        mask = self.mask if size == (8, 8) else self.mask_of(*size)
        windows = self.mix(self.windows(x))
        windows = windows.view(-1, mask.shape[0], 16, 3) + mask[None, :, :, None]
        x = self.joined(windows.view(-1, 4, 4, 3), *size)
        return torch.roll(x, (2, 2), (1, 2))[:, :height, :width]


def test_the_batch_found_from_the_number_of_windows_varies() -> None:
    model = Restores().eval()
    exported = tp.export(model, (torch.randn(1, 3, 8, 8),), dynamic={"x": {0: "batch", 2: "height", 3: "width"}})
    assert exported.route == "export"
    session = tp.session(exported.model)
    for shape in ((1, 3, 8, 8), (3, 3, 12, 8), (2, 3, 7, 18), (5, 3, 30, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


def test_an_equality_with_a_number_from_values_is_not_decided_by_samples() -> None:
    def check(h: torch.SymInt) -> None:
        env = h.node.shape_env
        with env.ignore_fresh_unbacked_symbols():
            unknown = env.create_unbacked_symint().node.expr
        long = padded(padded((h + 3) // 2, 7), 5).node.expr
        assert env._maybe_evaluate_static(sympy.Eq(unknown, long)) is None
        assert env._maybe_evaluate_static(sympy.Ne(unknown, long)) is None

    with sampled_sizes.sampled_sizes():
        captured(check)
