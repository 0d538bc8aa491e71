"""Small constants that the optimizer takes for zero or one, and conditions on tensors whose numbers are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchport as tp


class Normalized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8) * 1.000001


X = torch.randn(2, 8)


@pytest.mark.filterwarnings("ignore")
def test_torch_alone_loses_the_small_constant() -> None:
    program = torch.onnx.export(Normalized().eval(), (X,), dynamo=True, verbose=False)
    assert program is not None
    assert tp.session(program.model)(torch.zeros(2, 8)).isnan().all()


def test_a_small_constant_stays_in_the_graph() -> None:
    exported = tp.export(Normalized(), (X,), dynamic={"x": {0: "rows"}}, route="export")
    assert (tp.session(exported.model)(torch.zeros(3, 8)) == 0).all()
    assert "Add" in {node.op_type for node in exported.model.graph}


def test_zero_and_one_are_still_dropped() -> None:
    exported = tp.export(lambda x: (x + 0.0) * 1.0 - 0.0 + torch.relu(x), (X,), route="export")
    assert sorted(node.op_type for node in exported.model.graph) == ["Add", "Relu"]


def _integrated(field: nn.Module, y: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """As a solver of differential equations does it: the steps are asked of a tensor."""
    later = times[1:] > times[:-1]
    assert later.all() or (~later).all(), "must be increasing or decreasing"
    sign = 1.0
    if len(times) > 1 and times[0] > times[1]:
        times, sign, plain = -times, -1.0, field
        field = nn.Sequential(plain, nn.Identity())  # a function in one branch, and another one in the other
    for start, end in zip(times[:-1], times[1:], strict=True):  # noqa: RUF007 - as a solver does
        y = y + sign * (end - start) * field(y)
    return y if (times.diff() < 1).all().item() else y * times.tolist()[-1]


class Integrated(nn.Module):
    times: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.field = nn.Linear(8, 8)
        self.kind = kind
        self.plain = torch.tensor([3.0, 1.5, 0.0])
        self.register_buffer("times", torch.tensor([0.0, 0.5, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "made":
            return _integrated(self.field, x, torch.linspace(0, 1, 4))
        return _integrated(self.field, x, self.times if self.kind == "buffer" else self.plain)


@pytest.mark.parametrize("kind", ["made", "buffer", "plain"])
def test_conditions_on_tensors_made_of_numbers_are_known(kind: str) -> None:
    model = Integrated(kind)
    exported = tp.export(model, (X,), dynamic={"x": {0: "rows"}})
    assert exported.proof.passed
    assert exported.route == "export"
    assert "If" not in {node.op_type for node in exported.model.graph}
    x = torch.randn(5, 8)
    torch.testing.assert_close(tp.session(exported.model)(x), model(x))


def test_beside_a_condition_on_values() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = _integrated(model.field, x, torch.linspace(2, 0, 4))
        if y.sum() > 0:
            y = y * 2
        return y

    model = Integrated("made")
    exported = tp.export(call, (X,), dynamic={"x": {0: "rows"}})
    assert exported.proof.passed
    assert exported.route == "rewrite"
    assert [node.op_type for node in exported.model.graph].count("If") == 1


class Written(nn.Module):
    """Tensors that are known until they are written to: through a view, and with a number that is not known."""

    counted: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.plain = torch.zeros(3)
        self.register_buffer("counted", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(3)
        tensor = {"made": made, "buffer": self.counted, "plain": self.plain.clone()}[self.kind]
        part = tensor[1:]
        assert not tensor.any()
        part += x.sum()
        return x * 2 if tensor.sum() > 0 else x - 1


@pytest.mark.parametrize("kind", ["made", "buffer", "plain"])
def test_what_was_written_to_is_not_known(kind: str) -> None:
    exported = tp.export(Written(kind), (X,), dynamic={"x": {0: "rows"}})
    assert exported.proof.passed
    for x in (torch.ones(4, 8), -torch.ones(2, 8)):
        expected = x * 2 if x.sum() > 0 else x - 1
        torch.testing.assert_close(tp.session(exported.model)(x), expected)


def test_a_buffer_that_is_given_later_is_not_known() -> None:
    def gated(model: nn.Module) -> tp.Exported:
        return tp.export(model, (X,), dynamic={"x": {0: "rows"}}, weights="omit", allow_unproven=True)

    exported = gated(Gated())
    assert "If" in {node.op_type for node in exported.model.graph}


class Gated(nn.Module):
    gate: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gate", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.gate > 0 else x - 1


class Drawn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if torch.rand(()) < 2 else x * 2  # always x, so that the model repeats its output


def test_random_numbers_are_not_known() -> None:
    with pytest.raises(tp.CaptureError, match="depends on a tensor's value"):
        tp.export(Drawn(), (X,), route="export")
