"""Models whose shapes come from the values of tensors, each of another kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

Inputs = tuple[torch.Tensor, ...]


def lengths(rows: int, longest: int) -> torch.Tensor:
    return torch.randint(1, longest + 1, (rows,))


class MaskOfLengths(nn.Module):
    def forward(self, x, lengths):
        n = int(lengths.max())
        mask = torch.arange(n)[None, :] < lengths[:, None]
        return x[:, :n] * mask[..., None], mask


class Head(nn.Module):
    def forward(self, x, k):
        n = k.item()
        return x[:n] * 2, torch.arange(n), x[n:]


class Parts(nn.Module):
    def forward(self, x, sizes):
        first, second, third = x.split(sizes.tolist())
        return first.sum(0) + second.mean(0), third


class Found(nn.Module):
    def forward(self, x):
        rows, columns = torch.where(x > 0.5)
        return x.nonzero(), x[x > 0].sum(), x[rows, columns] * columns


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, keep):
        return self.layer(x[keep]), torch.masked_select(x, x > 0)


class Different(nn.Module):
    def forward(self, x):
        values, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
        return values, places, counts, torch.unique_consecutive(x)


class Repeated(nn.Module):
    def forward(self, x, n):
        return torch.repeat_interleave(x, n, dim=0), x.repeat_interleave(2, dim=1)


class Counted(nn.Module):
    def forward(self, x):
        n = (x > 0).sum().item()
        return torch.arange(n, dtype=torch.float32) / max(n, 1)


class Padded(nn.Module):
    def forward(self, x, n):
        k = n.item()
        return functional.pad(x, (0, k - x.shape[1])), torch.zeros(int(n), x.shape[1]) + 1


class RowByRow(nn.Module):
    def forward(self, x, lengths):
        outs = []
        for i, n in enumerate(lengths.tolist()):
            outs.append(x[i, :n].sum(0))
        return torch.stack(outs), max(lengths.tolist())


class Packed(nn.Module):
    def forward(self, x, lengths):
        out = x.new_zeros(int(lengths.sum()), x.shape[-1])
        place = 0
        for i in range(lengths.shape[0]):
            k = int(lengths[i])
            out[place : place + k] = x[i, :k]
            place += k
        return out


class Segments(nn.Module):
    def forward(self, x, segment):
        n = int(segment.max()) + 1
        total = torch.zeros(n, x.shape[1]).index_add_(0, segment, x)
        count = torch.zeros(n).index_add_(0, segment, torch.ones(len(segment)))
        return total / count.clamp(min=1)[:, None]


class NoneFound(nn.Module):
    def forward(self, x):
        places = (x > 0).nonzero().squeeze(1)
        if places.numel() == 0:
            return x.new_zeros(1)
        return x[places].cumsum(0)


class AtMost(nn.Module):
    def forward(self, x, lengths):
        n = int(lengths.max().item())
        if n > 4:
            n = 4
        return x[:, :n].sum(1)


class Classes(nn.Module):
    """As many columns as the values say."""

    def forward(self, x):
        return torch.nn.functional.one_hot(x).float().mean(0)


class Spaced(nn.Module):
    """Even steps, as many as a value or a size says; one step among them."""

    def forward(self, x, lengths):
        n = int(lengths.max())
        steps = torch.linspace(-0.5, 2, n)
        return x[:, :n] + steps, torch.logspace(0, 2, n, base=2), torch.linspace(0, 9, x.shape[0], dtype=torch.int64)


class Rolled(nn.Module):
    def forward(self, x, k):
        n = int(k)
        return torch.roll(x, n, 0), torch.roll(x, (n, -n), (1, 0)), torch.roll(x, k.item())


class Weighed(nn.Module):
    def forward(self, x, w):
        return torch.bincount(x, weights=w, minlength=4), torch.bincount(x, w.double()), torch.bincount(x)


class Unbound(nn.Module):
    """Rows along an axis of unknown size, as a list that the model changes, and goes over with a state."""

    def forward(self, x):
        steps = list(x.unbind(1))
        steps[0] = steps[0] * 2
        last = steps.pop()
        state = torch.zeros_like(last)
        states = []
        for step in steps:
            state = torch.tanh(step + state)
            states.append(state)
        return state + last, torch.stack(list(x.unbind(0)))


class Periods(nn.Module):
    """As in TimesNet: the strongest frequencies leave torch, and say how the rows of an image are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.position = nn.Parameter(torch.randn(24, 3) * 0.1)

    def forward(self, x):
        x = x + self.position
        spectrum = torch.fft.rfft(x, dim=1, norm="forward").abs()
        strength = spectrum.mean((0, 2))
        strength[0] = 0
        top = strength.topk(2).indices.detach().cpu().numpy()
        periods, weights = x.shape[1] // top, spectrum.mean(-1)[:, top].softmax(1)
        found = []
        for i in range(2):
            period = periods[i]
            if 24 % period != 0:
                length = (24 // period + 1) * period
                image = torch.cat([x, torch.zeros([x.shape[0], length - 24, 3])], 1)
            else:
                length = 24
                image = x
            image = image.reshape(x.shape[0], length // period, period, 3).permute(0, 3, 1, 2)
            found.append(self.conv(image).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 3)[:, :24])
        return (torch.stack(found, -1) * weights[:, None, None]).sum(-1)


class Cropped(nn.Module):
    """Numbers of a box through NumPy, and back."""

    def forward(self, x, box):
        start, length = box.numpy()
        whole = np.asarray(box) * 2
        return x[:, start : start + length].sum(1), torch.tensor(whole + 1) * 3, torch.zeros(x.shape[0], whole[1])


BATCH = {"x": {0: "batch"}}
ROWS = {"x": {0: "batch"}, "lengths": {0: "batch"}}

# model, its inputs for a number of rows, its dynamic axes
MODELS: dict[str, tuple[Any, Callable[[int], Inputs], dict[str, dict[int, str]]]] = {
    "MaskOfLengths": (MaskOfLengths, lambda b: (torch.randn(b, 6, 2), lengths(b, 6)), ROWS),
    "Head": (Head, lambda b: (torch.randn(b, 3), torch.randint(0, b + 1, ())), BATCH),
    "Parts": (Parts, lambda b: (torch.randn(6, b), torch.tensor([1, 2, 3])), {"x": {1: "columns"}}),
    "Found": (Found, lambda b: (torch.randn(b, 3),), BATCH),
    "Chosen": (Chosen, lambda b: (torch.randn(b, 4), torch.rand(b) > 0.4), {"x": {0: "n"}, "keep": {0: "n"}}),
    "Different": (Different, lambda b: (torch.randint(0, 4, (b + 3,)),), BATCH),
    "Repeated": (
        Repeated,
        lambda b: (torch.randn(b, 2), torch.randint(0, 4, (b,))),
        {"x": {0: "b"}, "n": {0: "b"}},
    ),
    "Counted": (Counted, lambda b: (torch.randn(b, 3),), BATCH),
    "Padded": (Padded, lambda b: (torch.randn(b, 5), torch.randint(5, 12, ())), BATCH),
    "RowByRow": (RowByRow, lambda b: (torch.randn(b, 6, 2), lengths(b, 6)), ROWS),
    "Packed": (Packed, lambda b: (torch.randn(b, 6, 2), lengths(b, 6)), ROWS),
    "Segments": (
        Segments,
        lambda b: (torch.randn(b, 3), torch.randint(0, 4, (b,))),
        {"x": {0: "b"}, "segment": {0: "b"}},
    ),
    "NoneFound": (NoneFound, lambda b: (torch.randn(b),), BATCH),
    "Classes": (Classes, lambda b: (torch.randint(0, 6, (b + 3,)),), BATCH),
    "Spaced": (Spaced, lambda b: (torch.randn(b, 6), lengths(b, 6)), ROWS),
    "Rolled": (Rolled, lambda b: (torch.randn(b, 3), torch.randint(-9, 9, ())), BATCH),
    "Weighed": (
        Weighed,
        lambda b: (torch.randint(0, 7, (b,)), torch.randn(b)),
        {"x": {0: "b"}, "w": {0: "b"}},
    ),
    "Unbound": (Unbound, lambda b: (torch.randn(b, b + 1, 2),), {"x": {0: "b", 1: "t"}}),
    "Periods": (Periods, lambda b: (torch.randn(b, 24, 3),), BATCH),
    "Cropped": (Cropped, lambda b: (torch.randn(b, 9), torch.randint(1, 5, (2,))), BATCH),
    "AtMost": (AtMost, lambda b: (torch.randn(b, 6), lengths(b, 6)), ROWS),
}
