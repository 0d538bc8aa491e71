"""Recurrent layers as ONNX nodes, packed sequences, and caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import check
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

BATCH_SEQUENCE = {0: "batch", 1: "steps"}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def rows(batch: int, steps: int) -> tuple[Tensor]:
    return (torch.randn(batch, steps, 6),)


class Layers(nn.Module):
    """Every kind of layer, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.b = nn.GRU(16, 6, 2, batch_first=True, bias=False, dropout=0.3)
        self.c = nn.RNN(6, 5, nonlinearity="relu", batch_first=True, bidirectional=True)
        self.d = nn.LSTM(10, 7, batch_first=True, bidirectional=True, proj_size=3)
        self.e = nn.GRU(6, 4, bidirectional=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x, (h, c) = self.a(x)
        x, _ = self.b(x)
        x, last = self.c(x)
        x, (p, _) = self.d(x)
        y, _ = self.e(x.transpose(0, 1))
        return y, h, c, last, p


def test_all_kinds_of_recurrent_layers_become_nodes_of_their_own(tmp_path: Path) -> None:
    others = [rows(1, 7), rows(5, 2), rows(4, 11), rows(1, 1)]
    exported, ops = check(tmp_path, Layers().eval(), rows(3, 7), others, dynamic={"x": BATCH_SEQUENCE})
    assert exported.route == "export"
    assert (ops["LSTM"], ops["GRU"], ops["RNN"]) == (4, 3, 1)
    assert not ops["Loop"] + ops["Scan"]


def test_all_kinds_of_recurrent_layers_in_float64_go_step_by_step(tmp_path: Path) -> None:
    others = [(x.double(),) for (x,) in (rows(1, 7), rows(5, 2), rows(1, 1))]
    exported, ops = check(
        tmp_path, Layers().eval().double(), (rows(3, 7)[0].double(),), others, dynamic={"x": BATCH_SEQUENCE}
    )
    assert exported.route == "export"
    assert ops["Loop"]
    assert not ops["LSTM"] + ops["GRU"] + ops["RNN"]


class GivenStates(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, **options)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        y, (h, c) = self.lstm(x, (h, c))
        return y, h, c


@pytest.mark.parametrize("projection", [0, 4])
def test_first_states_are_inputs(tmp_path: Path, projection: int) -> None:
    def given(batch: int, steps: int) -> tuple[Tensor, ...]:
        width = projection or 8
        return torch.randn(steps, batch, 6), torch.randn(4, batch, width), torch.randn(4, batch, 8)

    model = GivenStates(num_layers=2, bidirectional=True, proj_size=projection)
    axes = {"x": {0: "steps", 1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}
    check(tmp_path, model, given(3, 7), [given(1, 7), given(5, 1), given(2, 9)], dynamic=axes)


def test_an_example_without_batch_stays_without(tmp_path: Path) -> None:
    model = nn.GRU(6, 8, 2, bidirectional=True)
    _, ops = check(
        tmp_path,
        model,
        (torch.randn(7, 6),),
        [(torch.randn(1, 6),), (torch.randn(12, 6),)],
        dynamic={"input": {0: "steps"}},
    )
    assert ops["GRU"] == 2


class Packed(nn.Module):
    def __init__(self, *, sorted_: bool = False, total: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.sorted, self.total = sorted_, total

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.sorted)
        y, (h, c) = self.lstm(packed)
        total = x.shape[1] if self.total else None
        padded, found = pad_packed_sequence(y, batch_first=True, padding_value=-1.0, total_length=total)
        return padded, found, h, c


LENGTHS = {"x": BATCH_SEQUENCE, "lengths": {0: "batch"}}


def test_lengths_of_packed_sequences_are_inputs(tmp_path: Path) -> None:
    def given(steps: int, *lengths: int) -> tuple[Tensor, Tensor]:
        return torch.randn(len(lengths), steps, 6), torch.tensor(lengths)

    others = [given(4, 4), given(9, 3, 9, 1, 5), given(3, 2, 3), given(8, 4, 2)]
    exported, ops = check(tmp_path, Packed(), given(7, 5, 7, 2), others, dynamic=LENGTHS)
    assert ops["LSTM"] == 2
    assert not ops["Loop"] + ops["NonZero"]
    assert "recurrent layers as operators of their own" in exported.attempts[-1].repairs


def test_lengths_of_packed_sequences_are_inputs_in_float64_too(tmp_path: Path) -> None:
    def given(steps: int, *lengths: int) -> tuple[Tensor, Tensor]:
        return torch.randn(len(lengths), steps, 6, dtype=torch.float64), torch.tensor(lengths)

    others = [given(4, 4), given(9, 3, 9, 1, 5)]
    check(tmp_path, Packed().double(), given(7, 5, 7, 2), others, dynamic=LENGTHS)


def test_sorted_lengths_are_asked_sorted_and_a_total_length_is_kept(tmp_path: Path) -> None:
    def given(steps: int, *lengths: int) -> tuple[Tensor, Tensor]:
        return torch.randn(len(lengths), steps, 6), torch.tensor(lengths)

    others = [given(4, 2), given(9, 6, 5, 5, 1), given(3, 3, 2)]
    check(tmp_path, Packed(sorted_=True, total=True), given(7, 7, 5, 2), others, dynamic=LENGTHS)


class ChangedRows(nn.Module):
    """The packed rows themselves go through a layer, and no one unpacks the second network's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.between, self.second = nn.GRU(6, 5), nn.Linear(5, 4), nn.GRU(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        packed = pack_padded_sequence(x.transpose(0, 1), mask.sum(1).cpu(), enforce_sorted=False)
        y, _ = self.first(packed)
        y = PackedSequence(torch.relu(self.between(y.data)), y.batch_sizes, y.sorted_indices, y.unsorted_indices)
        return self.second(y)[1]


def test_rows_that_were_changed_while_packed_are_padded_again(tmp_path: Path) -> None:
    def given(steps: int, *lengths: int) -> tuple[Tensor, Tensor]:
        mask = torch.arange(steps) < torch.tensor(lengths).unsqueeze(1)
        return torch.randn(len(lengths), steps, 6), mask.to(torch.int64)

    axes = {"x": BATCH_SEQUENCE, "mask": BATCH_SEQUENCE}
    check(tmp_path, ChangedRows(), given(6, 6, 2, 4), [given(3, 2), given(8, 1, 5, 3, 8)], dynamic=axes)


class Cached(nn.Module):
    """Attention over keys and values of earlier steps, none of them at first."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, past: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
        batch, steps, _ = x.shape
        ((old_k, old_v),) = past
        q, k, v = (t.view(batch, steps, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        before = old_k.size(2)
        mask = torch.arange(k.size(2)) <= torch.arange(steps).unsqueeze(1) + before
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return {"y": self.out(y.transpose(1, 2).flatten(2)), "present": [(k, v)]}


def test_a_cache_may_be_empty_at_first(tmp_path: Path) -> None:
    def given(batch: int, steps: int, past: int) -> tuple[Any, ...]:
        return torch.randn(batch, steps, 16), [(torch.randn(batch, 4, past, 4), torch.randn(batch, 4, past, 4))]

    axes = {"x": BATCH_SEQUENCE, "past": [({0: "batch", 2: "past"}, {0: "batch", 2: "past"})]}
    exported, _ = check(
        tmp_path, Cached(), given(2, 3, 0), [given(1, 1, 9), given(3, 4, 0), given(1, 7, 2)], dynamic=axes
    )
    assert [i.name for i in exported.inputs] == ["x", "past.0.0", "past.0.1"]
    assert [o.name for o in exported.outputs] == ["y", "present.0.0", "present.0.1"]
