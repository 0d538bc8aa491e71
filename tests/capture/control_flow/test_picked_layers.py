"""Layers and values picked by a number that only the running model knows: experts, heads by task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agreement import check
from torch import nn

import torchport as tp

UNSEEN = [(sign * torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) + shift,)
          for n in (1, 2, 6) for sign, shift in ((1, 0.0), (-1, 0.5), (3, -0.7), (3, 0.9))]  # fmt: skip


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.by_name = nn.ModuleDict({"task_0": nn.Linear(4, 4), "task_1": nn.ReLU(), "other": nn.Tanh()})
        self.router = nn.Linear(4, 3)
        self.head_0, self.head_1 = nn.Linear(4, 2), nn.Linear(4, 2)


class Mixture(Experts):
    """Each expert that some row asks for, on its rows."""

    def forward(self, x):
        chosen = nn.functional.one_hot(self.router(x).argmax(-1), 3)
        out = torch.zeros_like(x)
        for expert in (chosen.sum(0) > 0).nonzero():
            (rows,) = torch.where(chosen[:, expert[0]])
            out.index_add_(0, rows, self.experts[expert[0]](x[rows]))
        return out


class ByNumber(Experts):
    def forward(self, x):
        number = int(x.sum() > 0) + int(x.mean() > 0.5)
        return self.experts[number](x)


class FromTheEnd(Experts):
    def forward(self, x):
        layer = self.experts[-(x.sum() > 0).long() - 1]
        return layer(x) @ layer.weight


class ByName(Experts):
    def forward(self, x):
        task = (x.sum() > 0).long()
        return self.by_name[f"task_{task}"](x)


class ByAttribute(Experts):
    def forward(self, x):
        return getattr(self, f"head_{int(x.sum() > 0)}")(x)


class ByText(Experts):
    def forward(self, x):
        tables = {"0": torch.sin, "1": torch.cos}
        return tables[str(int(x.sum() > 0))](x)


class Values(Experts):
    def forward(self, x):
        scales, weights = [0.5, 1.5, 2.5], [e.weight for e in self.experts]
        place = x.abs().sum().long() % 3
        return x @ weights[place] * scales[place]


class BySize(Experts):
    def forward(self, x):
        return self.experts[x.shape[0] % 3](x)


@pytest.mark.parametrize("kind", [Mixture, ByNumber, FromTheEnd, ByName, ByAttribute, ByText, Values, BySize])
def test_the_layer_picked_is_the_one_pytorch_picks(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    exported, _ = check(tmp_path, kind().eval(), (torch.randn(5, 4),), UNSEEN, dynamic={"x": {0: "rows"}})
    assert exported.route == "rewrite"


class TwoNumbers(Experts):
    def forward(self, x):
        table = {f"{a}_{b}": torch.sin for a in (0, 1) for b in (0, 1)}
        return table[f"{(x.sum() > 0).long()}_{(x.max() > 0).long()}"](x)


def test_a_name_of_two_unknown_numbers_is_refused_in_words() -> None:
    with pytest.raises(tp.TorchportError) as caught:
        tp.export(TwoNumbers().eval(), (torch.randn(5, 4),), route="rewrite")
    assert "a text is made of several numbers" in str(caught.value)
    assert "test_picked_layers.py" in str(caught.value)
