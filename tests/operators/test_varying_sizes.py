"""Functions of torch that take a size for a number, in models whose sizes vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import torchport as tp

Given = tuple[Tensor, ...]
PICTURE = {0: "b", 2: "h", 3: "w"}
SAMPLES = torch.rand(2, 3, 2)


def picture(b: int, h: int, w: int) -> Given:
    return (torch.randn(b, 3, h, w),)


def adaptive(x: Tensor) -> tuple[Tensor, ...]:
    fixed = F.adaptive_avg_pool2d(x, (3, 7)), F.adaptive_avg_pool2d(x, (None, 2)), F.adaptive_avg_pool2d(x, 1)
    return *fixed, F.adaptive_avg_pool2d(x, (x.shape[2] // 2 + 1, 5)), F.adaptive_avg_pool1d(x[0], x.shape[3])


def largest(x: Tensor) -> tuple[Tensor, ...]:
    maxima, places = F.adaptive_max_pool2d(x, (x.shape[2] // 3 + 1, 2), return_indices=True)
    return maxima, places, F.adaptive_max_pool1d(x[0], x.shape[3] // 2 + 1)


def area(x: Tensor) -> tuple[Tensor, ...]:
    half = F.interpolate(x, scale_factor=0.5, mode="area")
    return half, F.interpolate(x, size=(4, 6), mode="area"), F.interpolate(x[0], size=x.shape[2], mode="area")


def by_factor(x: Tensor) -> tuple[Tensor, ...]:
    h, w = x.shape[2:]
    small, factors = x[:1, :, :2, :2], ((h + 0.1) / 2, (w + 0.1) / 2)
    modes = ("bicubic", "bilinear", "nearest", "nearest-exact")
    return tuple(F.interpolate(small, scale_factor=factors, mode=mode) for mode in modes)


def fractional(x: Tensor) -> Tensor:
    return F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.6), _random_samples=SAMPLES)


def warped(x: Tensor, theta: Tensor) -> tuple[Tensor, ...]:
    b, _, h, w = x.shape
    y, z = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    places = torch.stack([z, y, torch.ones_like(y)], -1).reshape(1, -1, 3).expand(b, -1, -1)
    grid = (places @ theta.transpose(1, 2)).view(b, h, w, 2)
    affine = [F.affine_grid(theta, list(x.shape), align_corners=corners) for corners in (True, False)]
    return F.grid_sample(x, grid, align_corners=True), *affine


def pairs(x: Tensor) -> tuple[Tensor, ...]:
    n, m = x.shape
    lower, upper = torch.tril_indices(n, m, -1), torch.triu_indices(n, n, 1)
    return x[lower[0], lower[1]], upper


def padded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    rnn = nn.utils.rnn.pad_sequence
    return rnn([a, b], batch_first=True, padding_value=-1.0), rnn([b, a, b], padding_side="left")


def transport(x: Tensor) -> Tensor:
    kernel, u = torch.exp(-x), torch.ones_like(x[:, 0])
    v = 1 / (kernel.T @ u)
    return v * (u @ kernel.T.transpose(0, 1))


def windows(x: Tensor) -> tuple[Tensor, ...]:
    n = x.shape[-1]
    tiles = F.pad(x, [0, -n % 4]).unfold(1, -(-n // 4), -(-n // 4))
    return tiles, F.avg_pool1d(x, n), F.max_pool1d(x, kernel_size=n), x.unfold(1, 2, n // 2)


def convolved(x: Tensor) -> tuple[Tensor, ...]:
    return F.conv1d(x, torch.ones(2, 3, 3), padding=x.shape[2] // 2), F.conv1d(x, torch.ones(2, 3, 2), stride=2)


def whole(x: Tensor) -> tuple[Tensor, ...]:
    return F.avg_pool2d(x, x.shape[2:]), F.max_pool2d(x, kernel_size=x.size()[2:]), F.avg_pool2d(x, (1, x.shape[3]))


def tapered(x: Tensor) -> tuple[Tensor, ...]:
    n = x.shape[0]
    made = torch.hann_window(n), torch.hamming_window(n, False), torch.hamming_window(n, True, 0.6, 0.3)
    return tuple(x * w for w in (*made, torch.blackman_window(n, periodic=False), torch.bartlett_window(n)))


def counted(x: Tensor) -> tuple[Tensor, ...]:
    mean = x.sum() / x.shape.numel() if x.shape.numel() else x.sum()
    return mean, x.reshape(x.shape[:2].numel(), -1), x.reshape(x.size()[0:1] + x.shape[1:])


def written(x: Tensor) -> tuple[Tensor, ...]:
    rows, ends, steps = x.clone(), x.clone(), x.clone()
    rows[:2, :3] = 1
    ends[-2:] += torch.arange(x.shape[1])
    ends[1:-1, -1:] *= 2
    steps[1::2] = steps[:, :1][1::2]
    steps[:2, ::2] = 0.5
    return rows, ends, steps


MODELS: list[tuple[Callable[..., Any], dict[str, dict[int, str]], list[Given]]] = [
    (adaptive, {"x": PICTURE}, [picture(2, 12, 16), picture(1, 7, 9), picture(3, 20, 5)]),
    (largest, {"x": PICTURE}, [picture(2, 12, 16), picture(1, 7, 9), picture(3, 20, 5)]),
    (area, {"x": PICTURE}, [picture(2, 12, 16), picture(1, 7, 9), picture(3, 20, 5)]),
    (by_factor, {"x": {2: "h", 3: "w"}}, [picture(2, 6, 5), picture(2, 3, 8)]),
    (fractional, {"x": {2: "h[4..]", 3: "w[4..]"}}, [picture(2, 12, 16), picture(2, 11, 19)]),
    (
        warped,
        {"x": PICTURE, "theta": {0: "b"}},
        [(*picture(b, h, w), torch.randn(b, 2, 3) / 4) for b, h, w in ((2, 12, 16), (1, 7, 9), (3, 5, 4))],
    ),
    (pairs, {"x": {0: "n", 1: "m"}}, [(torch.randn(n, m),) for n, m in ((5, 6), (3, 9), (9, 2))]),
    (
        padded,
        {"a": {0: "n"}, "b": {0: "m"}},
        [(torch.randn(n, 3), torch.randn(m, 3)) for n, m in ((4, 6), (7, 2), (3, 3))],
    ),
    (transport, {"x": {0: "n", 1: "m"}}, [(torch.rand(n, m),) for n, m in ((6, 4), (3, 9), (1, 2))]),
    (windows, {"x": {0: "b", 1: "n"}}, [(torch.rand(b, n),) for b, n in ((2, 9), (1, 5), (3, 16))]),
    (convolved, {"x": {0: "b", 2: "n"}}, [(torch.rand(b, 3, n),) for b, n in ((2, 9), (1, 5), (3, 16))]),
    (whole, {"x": PICTURE}, [picture(2, 12, 16), picture(1, 7, 9), picture(3, 20, 5)]),
    (tapered, {"x": {0: "n"}}, [(torch.rand(n),) for n in (6, 1, 9, 2)]),
    (counted, {"x": PICTURE}, [picture(2, 12, 16), picture(1, 7, 9), picture(3, 20, 5)]),
    (written, {"x": {0: "n", 1: "m"}}, [(torch.randn(n, m),) for n, m in ((5, 5), (1, 5), (4, 1), (1, 1), (12, 7))]),
    (nn.InstanceNorm1d(3), {"input": {0: "c", 1: "t"}}, [(torch.randn(c, t),) for c, t in ((3, 12), (5, 7))]),
]


@pytest.mark.filterwarnings("ignore:input's size:UserWarning")
@pytest.mark.parametrize(("model", "dynamic", "inputs"), MODELS, ids=lambda v: getattr(v, "__name__", None))
def test_sizes_not_seen(model: Callable[..., Any], dynamic: Any, inputs: list[Given]) -> None:
    session = tp.session(tp.export(model, inputs[0], dynamic=dynamic, route="export").model)
    for given in inputs:
        got, want = session(*given), model(*given)
        for one, other in zip(*((t if isinstance(t, (tuple, list)) else (t,)) for t in (got, want)), strict=True):
            torch.testing.assert_close(torch.as_tensor(one), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_multilabel_margin_loss_of_a_row_and_of_several(rows: int) -> None:
    loss = nn.MultiLabelMarginLoss(reduction="none")
    x = torch.randn(*((rows,) if rows else ()), 5)
    target = torch.tensor([1, 3, -1, 0, 2]).expand(x.shape)
    session = tp.session(tp.export(loss, (x, target), route="export").model)
    for end in (-1, 4):
        other = torch.tensor([2, 0, 3, end, 1]).expand(x.shape).contiguous()
        torch.testing.assert_close(torch.as_tensor(session(x, other)), loss(x, other))


class SqueezesWhatVaries(torch.nn.Module):
    """An axis is removed if it has one item only, which images of the size that the model takes have not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if min(x.shape[2:]) < 4:
            raise ValueError("the image is too small")
        for axis in (3, 2, 1):
            x = x.squeeze(dim=axis)
        return x * 2


def test_an_axis_that_varies_is_not_squeezed() -> None:
    model = SqueezesWhatVaries()
    exported = tp.export(model, (torch.randn(2, 1, 8, 9),), dynamic={"x": {2: "height", 3: "width"}})
    assert exported.route == "export"
    session = tp.session(exported.model)
    for size in ((4, 5), (12, 8)):
        x = torch.randn(2, 1, *size)
        torch.testing.assert_close(session(x), model(x))


class PoolsPadded(torch.nn.Module):
    """Pads to even sizes while it pools, at several scales."""

    def __init__(self, pool: Callable[..., Tensor]) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.pool(x, kernel_size=2, padding=[size % 2 for size in x.shape[2:]])
        return x


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_pooling_with_padding_that_varies(pool: Callable[..., Tensor]) -> None:
    model = PoolsPadded(pool)
    exported = tp.export(model, (torch.randn(1, 2, 12, 14),), dynamic={"x": {2: "height", 3: "width"}})
    assert exported.route == "export"
    session = tp.session(exported.model)
    for size in ((8, 9), (11, 16), (13, 7), (5, 5)):
        x = torch.randn(1, 2, *size)
        torch.testing.assert_close(session(x), model(x))


def test_a_range_of_a_fraction_and_a_size_has_fractions() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * torch.arange(0.0, x.shape[1]), torch.arange(x.shape[1], 2.5 * x.shape[1], 2)

    exported = tp.export(call, (torch.randn(2, 9),), dynamic={"x": {1: "n"}}, route="export")
    x = torch.randn(2, 5)
    for own, theirs in zip(tp.session(exported.model)(x), call(x), strict=True):
        torch.testing.assert_close(own, theirs)
