"""Where a capture is in doubt the proof asks, and what it cannot show is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchport as tp
from torchport.capture.guards import Guard, challenges
from torchport.results import Dim

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("expression", "sizes"),
    [
        ("s0 < 10", [10, 11]),
        ("Ne(Mod(s0, 7), 0)", [7, 14]),
        ("s0 >= 2", [1]),
        ("s0 <= 512", [513, 1024]),
        ("Eq(FloorDiv(s0, 2), 2)", [1, 2]),
        ("s0 > Unreadable(3", []),
        ("s1 < 10", []),
    ],
)
def test_the_first_sizes_at_which_a_guard_does_not_hold(expression: str, sizes: list[int]) -> None:
    found = challenges([Guard(expression, "model.py:3")], {"s0": Dim("n")}, {"n": 4})
    assert [c.sizes["n"] for c in found] == sizes


def test_bounds_are_kept_and_products_are_split() -> None:
    assert challenges([Guard("s0 < 10", "")], {"s0": Dim("n", max=9)}, {"n": 4}) == ()
    symbols = {"s0": Dim("a", max=9), "s1": Dim("b", max=20)}
    found = challenges([Guard("s0*s1 <= 100", "")], symbols, {"a": 4, "b": 5})
    assert found
    assert all(c.sizes.get("a", 4) * c.sizes.get("b", 5) > 100 for c in found)


def truncate(x: torch.Tensor) -> torch.Tensor:
    return x[:10] * 2


class Switches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 30:
            return x * 2
        return x + 1


@pytest.mark.parametrize("model", [truncate, Switches()], ids=["slice", "branch"])
@pytest.mark.parametrize("route", ["auto", "export", "trace"])
def test_a_size_on_the_other_side_of_a_condition_is_right_or_refused(model: Any, route: str) -> None:
    try:
        exported = tp.export(model, (X,), dynamic={"x": {0: "n"}}, route=route)
    except tp.ProofError as error:
        assert "settled that size at" in str(error) or "doubt" in str(error)  # noqa: PT017
        assert route != "auto"
        return
    if model is truncate:
        assert exported.outputs[0].shape != ("n", 3)  # it is at most ten
    session = tp.session(exported.model)
    for rows in (9, 10, 11, 30, 31, 40):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(session(x), model(x))


class NeverSeen(nn.Module):
    """A branch no sampled value takes, in code that cannot be scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.abs().max()) > 1e9:
            return x * 0
        return x + eval("1")


class NeverSeenOnOneLine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + 1
            if float(x.abs().max()) > 1e9: break  # noqa: E701 # fmt: skip
        return x


class NeverSeenInAnExpression(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (0 if float(x.abs().max()) > 1e9 or float(x.min()) < -1e9 else 1)


class RoundsNeverVary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounds = torch.zeros(())
        while float(x.abs().max()) > 1e9 or int(rounds) < 3:
            x, rounds = x * 0.5, rounds + 1
        return x


@pytest.mark.parametrize("kind", [NeverSeen, NeverSeenOnOneLine, NeverSeenInAnExpression, RoundsNeverVary])
def test_a_branch_that_no_case_takes_is_not_proven(kind: type[nn.Module]) -> None:
    with pytest.raises(tp.ProofError, match="no case went the other way") as caught:
        tp.export(kind(), (X,), route="trace")
    assert "test_guards.py" in str(caught.value)


class BothSeenInAnExpression(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().sum() < 0:
            raise ValueError("no number is below its own size")
        return x + (0 if float(x.sum()) > 0 or x.max() < -5 else -0)


def test_a_branch_that_went_both_ways_or_raises_is_proven() -> None:
    assert tp.export(BothSeenInAnExpression(), (X,), route="trace").proven


class AnswersZeros(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.abs().max()) == 0:
            return torch.full((x.shape[0],), -1)
        return x.argmax(1) + eval("0")


def test_a_frozen_branch_gets_no_excuse_for_being_ill_conditioned() -> None:
    with pytest.raises(tp.ProofError):
        tp.export(AnswersZeros(), (X,), route="trace")


class CountsSteps(nn.Module):
    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        for _ in dict.fromkeys(range(int(steps)), 1):
            x = x * 2
        return x


def test_an_integer_of_one_value_is_varied_when_a_trace_may_have_frozen_it() -> None:
    with pytest.raises(tp.ProofError):
        tp.export(CountsSteps(), (X, torch.tensor(3)))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 5, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


def test_what_the_tracer_warns_of_inside_torch_counts_too() -> None:
    with pytest.raises((tp.ProofError, tp.CaptureError)):
        tp.export(Packed(), (torch.randn(2, 6, 8), torch.tensor([6, 6])), route="trace")


def test_a_model_that_exits_is_an_error() -> None:
    def leave(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(0)

    with pytest.raises(tp.errors.ForwardError, match="SystemExit"):
        tp.export(leave, (X,))


class ChecksShapes(nn.Module):
    """Conditions on shapes, which draw the tracer's warnings too, in code that cannot be scripted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 3:
            raise ValueError("three columns, please")
        return x + eval("1")


def test_a_check_of_shapes_is_no_branch_on_values() -> None:
    exported = tp.export(ChecksShapes(), (X,), dynamic={"x": {0: "n"}}, route="trace")
    assert exported.proof.passed


def doubled_unless_empty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.numel() > 0, lambda x, y: x * 2, lambda x, y: x + 1, [x, y])


def test_a_choice_by_an_empty_input_is_not_proven_where_torch_settles_it() -> None:
    example = (torch.randn(2, 3), torch.randn(2, 4))
    with pytest.raises(tp.ProofError, match="the capture settled that size at"):
        tp.export(doubled_unless_empty, example, dynamic={"x": {0: "n"}, "y": {0: "n", 1: "m"}}, route="export")
    assert tp.export(doubled_unless_empty, example, dynamic={"y": {1: "m[1..]"}}).proven
