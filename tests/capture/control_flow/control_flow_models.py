# ruff: noqa: N812, RET504, SIM108 - written as users write
"""Models whose Python control flow depends on tensors or on sizes that vary, each of another kind."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class TwoLayers(nn.Module):
    """Parameters inside the branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            y = self.a(x)
        else:
            y = self.b(x) * 2
        return y + 1


class Chain(nn.Module):
    """elif, nested, numbers that differ between branches."""

    def forward(self, x):
        m = x.mean()
        if m > 0.5:
            y = x * 2
            z = 1.0
        elif m > 0:
            y = x + 3
            z = 2.0
        elif m > -0.5:
            if x.max() > 1:
                y = x - 1
            else:
                y = -x
            z = 0.5
        else:
            y = x / 2
            z = 3.0
        return y * z


class EarlyReturn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        if x.abs().max() > 3:
            return x.clamp(-1, 1)
        h = self.a(x)
        if h.sum() < 0:
            h = -h
            if h.mean() > 0.3:
                return h * 2
        return h + x


class Words(nn.Module):
    """and, or, not, a chained comparison, a conditional expression."""

    def forward(self, x):
        y = x.flip(0) - 0.5
        if (x.sum() > 0 and not (y.sum() > 0)) or x.max() > 2:
            x = x + 1
        if 0 < x.mean() < 1:
            x = x * 3
        return x + y if x.sum() > y.sum() else x - y


def helper(v, w):
    if v.sum() > 0:
        return v * w
    return v - w


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x):
        if (x > self.w).any():
            return helper(x, self.w)
        return x


class Checked(nn.Module):
    """A submodule, a helper function, assert and raise on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.layer = Part(), nn.Linear(4, 4)

    def forward(self, x):
        assert x.sum() < 1e6, "too big"
        if torch.isnan(x).any():
            raise ValueError("not a number")
        return self.part(self.layer(x))


class OneSided(nn.Module):
    """Different variables set in the branches."""

    def forward(self, x):
        big = x.sum() > 0
        if big:
            a = x * 2
        else:
            b = x - 1
        if big:
            return a
        return b


class Halve(nn.Module):
    def forward(self, x):
        n = 0
        while x.norm() > 1:
            x = x / 2
            n += 1
        return x, n


class Recurrence(nn.Module):
    """for over range(size), state carried, results collected and concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x):
        h = torch.zeros(1, 4)
        outs = []
        for i in range(x.shape[0]):
            h = self.cell(x[i : i + 1], h)
            outs.append(h)
        return torch.cat(outs, 0)


class Picky(nn.Module):
    """for over rows with break and continue, a list of unknown length."""

    def forward(self, x):
        total = torch.zeros(4)
        seen = []
        for row in x:
            if row.sum() < -2:
                break
            if row[0] < 0:
                continue
            total = total + row
            seen.append(row * 2)
        return total, torch.stack(seen) if len(seen) > 0 else torch.zeros(0, 4)


class Find(nn.Module):
    """return out of a loop."""

    def forward(self, x):
        for i, row in enumerate(x):
            if row.sum() > 1:
                return row * i
        return x[0] * 0


class Differences(nn.Module):
    """The first round is another than the rest."""

    def forward(self, x):
        previous = None
        total = 0
        for row in x:
            if previous is not None:
                total = total + (row - previous).abs()
            else:
                total = total + row * 0
            previous = row
        return total


class Best(nn.Module):
    def forward(self, x):
        best = x[0]
        place = 0
        for i in range(1, len(x)):
            if x[i].sum() > best.sum():
                best = x[i]
                place = i
        return best, place


class Backwards(nn.Module):
    def forward(self, x):
        h = torch.zeros(x.shape[-1])
        states = []
        for t in reversed(range(x.shape[0])):
            h = 0.5 * h + x[t]
            states.append(h)
        return torch.stack(states[::-1])


class Table(nn.Module):
    """A loop in a loop."""

    def forward(self, x):
        out = []
        for i in range(x.shape[0]):
            row = []
            for j in range(x.shape[1]):
                row.append(x[i, j] * (i + 2 * j))
            out.append(torch.stack(row))
        return torch.stack(out)


class WriteRows(nn.Module):
    """Rows written in place."""

    def forward(self, x):
        out = torch.zeros_like(x)
        for i in range(x.size(0)):
            if x[i].sum() > 0:
                out[i] = x[i] * 2
            else:
                out[i] -= 1
        return out


class Comprehension(nn.Module):
    def forward(self, x):
        return torch.stack([row * row.max() for row in x])


class PadToFour(nn.Module):
    """A condition on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 5, 3, padding=1)

    def forward(self, x):
        x = x.t().unsqueeze(0)
        length = x.shape[-1]
        if length % 4:
            x = F.pad(x, (0, 4 - length % 4))
        return F.avg_pool1d(self.conv(x), 4)


class WholeNumbers(nn.Module):
    """int(), float() and len() of sizes."""

    def forward(self, x):
        k = int(x.shape[0] / 2)
        return x[:k] * float(x.shape[0]) + len(x)


class ToTheEnd(nn.Module):
    """A sequence that grows until a token says stop."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 10)

    def forward(self, x):
        tokens = x[:, :2].abs().long() % 10
        while tokens.shape[1] < 9:
            following = self.out(self.embed(tokens).mean(1)).argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], 1)
            if (following == 3).all():
                break
        return tokens


class TokensInAList(ToTheEnd):
    """Tokens appended to a list, round after round of a fixed number, until all are done."""

    def forward(self, x):
        token, tokens = x[:, 0].abs().long() % 10, []
        for _ in range(4):
            token = self.out(self.embed(token)).argmax(-1)
            tokens.append(token)
            if (token == 3).all():
                break
        return torch.stack(tokens, 1)


class LastTokenOfAList(ToTheEnd):
    """The list itself is what is counted, and its last item what goes on."""

    def forward(self, x):
        tokens = [x[:, 0].abs().long() % 10]
        while len(tokens) < 5:
            tokens.append(self.out(self.embed(tokens[-1])).argmax(-1))
            if int(tokens[-1][0]) == 5:
                break
        return torch.stack(tokens, 1)


class EarlyExit(nn.Module):
    """A loop over layers that returns when it is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = torch.relu(layer(x))
            logits = head(x)
            if logits.softmax(-1).max(-1).values.min() > 0.4:
                return logits
        return logits


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = chosen == i
            if mine.any():
                out[mine] = expert(x[mine])
        return out


class Remembers(nn.Module):
    """An attribute and a buffer changed in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if x.abs().max() > 1:
            self.calls += 1
            self.last = x / x.abs().max()
        else:
            self.last = x
        return self.last + self.calls


class Parent(nn.Module):
    def forward(self, x):
        return x * 3


class Child(Parent):
    """super() and a private name inside a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.__k = 4.0

    def forward(self, x):
        if x.mean() > 0:
            return super().forward(x) + self.__k
        x = super().forward(-x)
        return x


class Inner(nn.Module):
    """A function inside forward, with a variable from outside."""

    def forward(self, x):
        scale = 2.0

        def inner(v):
            if v.max() > 1:
                return v * scale
            return v / scale

        return inner(x) + inner(-x)


class Numbers(nn.Module):
    """.item(), float() and bool() in conditions, across a method."""

    def fits(self, x):
        return bool((x > -3).all()) and x.sum().item() < 4

    def forward(self, x):
        rate = float(x.std())
        k = 1 if rate > 1.0 else 3
        peak = x.max().item()
        if peak > 1:
            x = x / peak
        return x * k * rate + 1 if self.fits(x) else x - 1


class Keys(nn.Module):
    """A dict changed in the branches."""

    def forward(self, x):
        out = {"a": x, "b": x * 0}
        if x.sum() > 0:
            out["a"] = x + 1
            out["b"] = x * 2
        else:
            out["b"] = x - 5
        return out


class OtherSizes(nn.Module):
    """Branches that give other sizes."""

    def forward(self, x):
        if x.sum() > 0:
            y = x[:1]
        else:
            y = torch.cat([x, x])
        return y * 2


class Forever(nn.Module):
    """while True with a break."""

    def forward(self, x):
        steps = torch.zeros(())
        while True:
            x = x * 0.5
            steps = steps + 1
            if x.abs().max() < 0.1:
                break
        return x, steps


def doubled_or_less(x):
    if bool(x.sum() > 0):
        return x * 2
    return x - 1


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # DeprecationWarning in torch 2.13, FutureWarning in 2.15
    scripted = torch.jit.script(doubled_or_less)


class CallsScripted(nn.Module):
    """A function compiled by TorchScript, with a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return scripted(self.layer(x))


class Windows(nn.Module):
    """A list of tuples of sizes, then tensors of different sizes put together."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        windows = []
        for start in range(0, len(x), 2):
            windows.append((start, min(len(x), start + 2)))
        parts = []
        for start, end in windows:
            part = x[start:end]
            parts.append(self.layer(part) - part.sum(0, keepdim=True))
        return torch.cat(parts), len(windows)


class Positions(nn.Module):
    """A list of numbers as long as the input, indexed, sliced and joined."""

    def forward(self, x):
        every = list(range(len(x)))
        before = [-1]
        pooled = before + every[1:][::2]
        farthest = pooled[0] - every[-1]
        return torch.arange(2 * len(pooled), farthest - 1, -1) * 1.0, x * len(every)


class SameQuestion(nn.Module):
    """One value asked for several times; a number is written where it holds."""

    def forward(self, x):
        large = (x.abs().max() > 3).item()
        y = x * 1.0
        if large:
            y[x > 3] = 3
        z = y.sum(1) if large else y.mean(1)
        assert z.dim() == 1
        if large and self.training:
            z = z + 1
        return y, z


class PooledRows(nn.Module):
    """A pool along an axis that varies, beside a branch."""

    def forward(self, x):
        y = nn.functional.max_pool1d(torch.cat([x, x + 1]).t(), 2)
        return y * 2 if x.sum() > 0 else y


class EqualOnOneSide(nn.Module):
    """What one side takes two sizes to be does not hold on the other."""

    def forward(self, x):
        kept = x[x[:, 0] > 0]
        other = x[x[:, 1] > 0]
        if len(kept) == len(other):
            y = kept * other
        else:
            y = torch.cat([kept, other])
        return y, torch.cat([kept, other]).sum()


class OneRow(nn.Module):
    """Conditions that set a size of one apart from the rest, alone and in `and`, `or` and `min`."""

    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        if x.shape[0] == 1:
            x = x - 5
        scale = 3 if len(x) > 1 and x.shape[0] != 5 else 0.5
        if x.shape[0] - 1:
            x = x + 7
        return x * scale * max(x.shape[0] - 1, 1)


class OnlyOneRow(nn.Module):
    """The same, with nothing else to rewrite."""

    def forward(self, x):
        if x.shape[0] < 2:
            return x - 5
        return x


class TwoEnds(nn.Module):
    """A while on sizes, with no round at all where there is one row."""

    def forward(self, x):
        i, j = 0, x.shape[0] - 1
        s = x[:, 0]
        best = torch.full((), 50.0)
        while i < j:
            t = s[i] + s[j]
            if t.abs() < best.abs():
                best = t
            if t < 0:
                i += 1
            else:
                j -= 1
        return best, i, j


class SlicedOnOneSide(nn.Module):
    """Slices in a branch on a size, which end elsewhere than at the example's size; their sizes are used."""

    def forward(self, x):
        if x.shape[0] > 4:
            x = x[:5] * 3
            x = x + torch.arange(x.shape[0] * 4).reshape(-1, 4)
        else:
            y = x[3:, ..., 1:]
            x = torch.cat([x, y.new_ones(y.shape[0], 4)])
        return x + 1


class TensorOrNumber(nn.Module):
    """`or` of a tensor and a number that the loop counts; in a test, and inside of the loop."""

    def forward(self, x):
        a = x.abs().sum()
        i, hits = 0, 0
        while a > 0.5 or i < 3:
            a = a * 0.5
            i += 1
        for k, row in enumerate(x):
            if (row > 0).all() or (k > 1 and row[0] > 0):
                hits += 1
                continue
            a = a + row.sum() * k
        return a, i, hits


class Highest(nn.Module):
    """The highest of numbers out of tensors, from minus infinity on."""

    def forward(self, x):
        best, place = float("-inf"), -1
        for i, row in enumerate(x):
            v = row.sum().item()
            if v > best:
                best, place = v, i
        return x * best, place


class Matched(nn.Module):
    """`match` on a number out of a tensor: values, several of them, a condition, the rest."""

    def forward(self, x):
        match x.argmax().item() % 7:
            case 0:
                return x - 1
            case 1 | 2:
                y = x * 2
            case 3 as k if x.sum() > 0:
                y = x + k
            case k if k > 4:
                y = x / k
            case _:
                y = -x
        return y + 1


class Rounded(nn.Module):
    """Several ways to make a whole number of a tensor, side by side."""

    def forward(self, x):
        v = x.sum()
        a, b, c = int(v), round(v.item()), math.floor(v)
        n = v.item()
        d = n // 2
        e = round(n) % 3 + math.ceil(n)
        if v > 0:
            a = math.trunc(n)
        return x * a, x * b, x * c, x * d, x * e


class Memory:
    def __init__(self, size):
        self.state = torch.zeros(size)
        self.writes = 0

    def push(self, row):
        if row.max() > 1:
            self.state = self.state * 0.5 + row
            self.writes += 1


class KeepsInObject(nn.Module):
    """State in a plain object, changed in a branch of a method, and in a loop."""

    def forward(self, x):
        memory, last = Memory(4), SimpleNamespace(row=torch.zeros(4))
        for row in x:
            memory.push(row)
            if row.sum() < 0:
                last.row = row + memory.state
        memory.push(x[0])
        return memory.state, memory.writes, last.row


class WrittenView(nn.Module):
    """A view made before a loop and written in it; what it is a view of sees that, and later views too."""

    def forward(self, x):
        table = torch.zeros(3, 4)
        row, other = table[1], table[:, 0]
        for r in x:
            row += r
        total = torch.zeros(4)
        top = total[:2]
        for i in range(x.shape[0]):
            total[i % 4] = x[i].sum()
        row += 1
        return table, other * 2, top


REWRITTEN: dict[str, Any] = {
    model.__name__: model
    for model in (
        TwoLayers,
        Chain,
        EarlyReturn,
        Words,
        Checked,
        OneSided,
        Halve,
        Recurrence,
        Picky,
        Find,
        Differences,
        Best,
        Backwards,
        Table,
        WriteRows,
        Comprehension,
        PadToFour,
        WholeNumbers,
        ToTheEnd,
        TokensInAList,
        LastTokenOfAList,
        EarlyExit,
        Experts,
        Remembers,
        Child,
        Inner,
        Numbers,
        Keys,
        OtherSizes,
        Forever,
        CallsScripted,
        Windows,
        Positions,
        SameQuestion,
        PooledRows,
        EqualOnOneSide,
        OneRow,
        OnlyOneRow,
        TwoEnds,
        SlicedOnOneSide,
        TensorOrNumber,
        Highest,
        Matched,
        Rounded,
        KeepsInObject,
        WrittenView,
    )
}


class OtherTypes(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x.long()
        return x


class Generator(nn.Module):
    def forward(self, x):
        def rows():
            for row in x:
                if row.sum() > 0:
                    yield row

        return sum(rows())


class Tried(nn.Module):
    def forward(self, x):
        try:
            if x.sum() > 0:
                x = x + 1
        finally:
            x = x * 2
        return x


class TakenApart(nn.Module):
    def forward(self, x):
        match x.shape:
            case (_, 4):
                if x.sum() > 0:
                    x = x + 1
        return x


class WrittenBesideItsView(nn.Module):
    """A loop writes to a tensor and to a view of it."""

    def forward(self, x):
        table = torch.zeros(3, 4)
        row = table[1]
        for i in range(x.shape[0]):
            row += x[i]
            table[i % 3] = x[i] * 2
        return table


class Sorted(nn.Module):
    """Values are asked for where nothing can be rewritten."""

    def forward(self, x):
        return torch.stack(sorted(x[0]))


class PaddedToAMultiple(nn.Module):
    """As models with windows of attention do; one method puts the padding on, another takes it off."""

    def pad(self, x):
        missing = (4 - x.shape[1] % 4) % 4
        if missing > 0:
            x = F.pad(x, (0, missing))
        return x, missing

    def forward(self, x):
        x, missing = self.pad(x)
        if x.sum() > 0:
            x = x * 2
        y = x.view(x.shape[0], -1, 4).cumsum(-1).reshape(x.shape)
        if missing > 0:
            y = y[:, :-missing]
        return y


class SlicedBySizes(nn.Module):
    """As in Fourier operators: a condition on a size chooses a slice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        start = 4 - min(x.shape[1], 4)
        weight = self.weight[:, slice(start // 2, -start // 2) if start else slice(start, None)]
        center, half = x.shape[1] // 2, weight.shape[1] // 2
        kept = slice(center - half, center + half + weight.shape[1] % 2)
        out = torch.zeros_like(x)
        out[:, kept] = torch.einsum("bi,ci->bi", x[:, kept], weight)
        odd = slice(1, None) if x.shape[1] > 5 else slice(None, 3)
        return out, x[:, odd] * 2


class PaddedBySizes(nn.Module):
    """As in Demucs: conditions on the length choose how much to pad, and two ways to one length meet in a sum."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Conv1d(2, 2, 8, 4, 2) for _ in range(2)])

    @staticmethod
    def reflected(x, left, right):
        whole, length = x, x.shape[-1]
        paddings = (left, right)
        if length <= max(left, right):
            extra = max(left, right) - length + 1
            extra_right = min(right, extra)
            paddings = (left - extra + extra_right, right - extra_right)
            x = F.pad(x, (extra - extra_right, extra_right))
        padded = F.pad(x, paddings, mode="reflect")
        assert padded.shape[-1] == length + left + right
        assert (padded[..., left : left + length] == whole).all()
        return padded

    def forward(self, x):
        frames = math.ceil(x.shape[-1] / 16)
        padded = self.reflected(x, 24, 24 + frames * 16 - x.shape[-1])
        spectrum = torch.stft(padded.flatten(0, 1), 32, 16, window=torch.hann_window(32), return_complex=True)
        spectrum = spectrum.abs().mean(1)[..., 2 : 2 + frames].view(x.shape[0], 2, frames)
        for step in self.steps:
            if x.shape[-1] % 4 != 0:
                x = F.pad(x, (0, 4 - x.shape[-1] % 4))
            x = step(x)
        return x + spectrum


class PaddedWindows(nn.Module):
    """As in shifted windows: what one block crops only where it has padded, the next one pads again."""

    def block(self, x):
        batch, height, width = x.shape
        rows, columns = (4 if size > 4 else size for size in (height, width))
        bottom, right = (rows - height % rows) % rows, (columns - width % columns) % columns
        y = F.pad(x, (0, right, 0, bottom))
        windows = y.view(batch, y.shape[1] // rows, rows, y.shape[2] // columns, columns)
        y = windows.cumsum(2).flip(4).reshape(batch, y.shape[1], y.shape[2])
        if right > 0 or bottom > 0:
            y = y[:, :height, :width].contiguous()
        return x + y.tanh()

    def forward(self, x):
        return self.block(self.block(x))


class Shared(nn.Module):
    """A layer under two names, called in a branch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.again = self.first

    def forward(self, x):
        if x.sum() > 0:
            x = self.again(x) * 2
        return self.first(x)


class SharedInABranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Shared(), Shared()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
