"""Operators composed of others: replaced call by call, or by tracing the whole program again where that is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchport as tp
from torchport.irtools.metadata import origin_of
from torchport.operators import composition

NODES = torch.tensor([0, 2, 2, 1, 0])


def summed_after_all(x: Tensor) -> Tensor:
    return torch.zeros(3, x.shape[1]).scatter_reduce(0, NODES[:, None].expand(-1, x.shape[1]), x, "mean") * 2


def written_to_a_new_tensor(x: Tensor) -> Tensor:
    return torch.zeros(3, x.shape[1]).scatter_reduce_(0, NODES[:, None].expand(-1, x.shape[1]), x, "mean") * 2


def written_to_a_tensor_with_a_view(x: Tensor) -> Tensor:
    sums = torch.zeros(3, x.shape[1])
    view = sums[:2]
    sums.scatter_reduce_(0, NODES[:, None].expand(-1, x.shape[1]), x, "mean")
    return sums * view.sum()


def given_as_the_output(x: Tensor) -> Tensor:
    return torch.zeros(3, x.shape[1]).scatter_reduce(0, NODES[:, None].expand(-1, x.shape[1]), x, "mean")


def beside_a_write(x: Tensor) -> Tensor:
    filled = torch.zeros_like(x)
    filled[:2].fill_(3.0)
    return torch.zeros(3, x.shape[1]).scatter_reduce(0, NODES[:, None].expand(-1, x.shape[1]), x, "mean") + filled.sum()


@pytest.fixture
def traced_again(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the decompositions by which whole programs are traced again."""
    plain, seen = torch.export.ExportedProgram.run_decompositions, []

    def counted(self: Any, table: Any = None) -> Any:
        seen.append(table)
        return plain(self, table)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    return seen


@pytest.mark.parametrize(
    ("model", "times"),
    [
        (summed_after_all, 1),  # that of torch.onnx.export itself
        (written_to_a_new_tensor, 1),
        (beside_a_write, 1),
        (written_to_a_tensor_with_a_view, 2),
        (given_as_the_output, 2),
    ],
)
def test_calls_are_replaced_without_tracing_the_program_again_where_nothing_else_sees_them(
    model: Any, times: int, traced_again: list[Any]
) -> None:
    exported = tp.export(model, torch.randn(5, 4), dynamic={"x": {1: "n"}}, route="export")
    assert exported.proof.passed
    assert len(traced_again) == times
    x = torch.randn(5, 7)
    torch.testing.assert_close(tp.session(exported.model)(x), model(x))


class Pooled(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(3, x.shape[1]).scatter_reduce(0, NODES[:, None].expand(-1, x.shape[1]), x, "mean") * 2


def test_the_nodes_of_a_composition_have_the_line_of_the_call() -> None:
    exported = tp.export(Pooled(), torch.randn(5, 4), dynamic={"x": {1: "n"}}, route="export")
    scatters = [node for node in exported.model.graph if node.op_type.startswith("Scatter")]
    line = Pooled.forward.__code__.co_firstlineno + 1
    assert scatters
    assert all(f"test_composition.py:{line}" in str(origin_of(node)) for node in scatters)


def test_a_composition_that_gives_back_its_input_does_not_share_it() -> None:
    @torch.library.custom_op("tests::copied", mutates_args=())
    def copied(x: Tensor) -> Tensor:
        return x.clone()

    @copied.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = torch.ops.tests.copied(y)
        z.add_(1)
        return y * 1, z * 1

    tp.composition("tests::copied")(lambda x: x.view(x.shape))
    try:
        exported = tp.export(model, torch.randn(5, 4), dynamic={"x": {0: "n"}}, route="export")
    finally:
        composition.forget("tests::copied")
    x = torch.randn(3, 4)
    for found, expected in zip(tp.session(exported.model)(x), model(x), strict=True):
        torch.testing.assert_close(found, expected)
