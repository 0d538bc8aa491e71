"""torch.cond, while_loop, scan, map and associative_scan, as they stand in the user's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_operator_models as models
from torch.utils import _pytree as pytree

import torchport as tp
from torchport.capture.structure import output_tensors

DYNAMIC = {"x": {0: "n"}}


# What torch's documentation says of the operators. torch itself compiles them, and refuses results that are inputs.


def plain_cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return (true_fn if pred else false_fn)(*operands)


def plain_while_loop(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def plain_scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    rows = []
    for row in xs.movedim(dim, 0).flip(0) if reverse else xs.movedim(dim, 0):
        init, out = combine_fn(init, row)
        rows.append(pytree.tree_map(torch.clone, out))
    stacked = pytree.tree_map(lambda *leaves: torch.stack(leaves), *(rows[::-1] if reverse else rows))
    return init, pytree.tree_map(lambda t: t.movedim(0, dim) if dim else t, stacked)


def plain_map(f: Any, xs: Any, *args: Any) -> Any:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *(f(row, *args) for row in xs))


def plain_associative_scan(f: Any, xs: Any, dim: int, *, reverse: bool = False, combine_mode: str) -> Any:
    rows = list(zip(*xs, strict=True)) if isinstance(xs, tuple) else list(xs)
    rows = rows[::-1] if reverse else rows
    for n in range(1, len(rows)):
        rows[n] = f(rows[n - 1], rows[n])
    stacked = [torch.stack(part) for part in zip(*rows, strict=True)] if isinstance(xs, tuple) else torch.stack(rows)
    return stacked.flip(0) if reverse else stacked


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[torch.Tensor]]:
    """Run a model with these in the place of torch's."""

    def run(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(torch, "cond", plain_cond)
            patch.setattr(models, "while_loop", plain_while_loop)
            patch.setattr(models, "scan", plain_scan)
            patch.setattr(models, "map_", plain_map)
            patch.setattr(models, "associative_scan", plain_associative_scan)
            return output_tensors(model(x.clone()))[1]

    return run


def made(name: str) -> Any:
    torch.manual_seed(5)
    return models.MODELS[name]()


@pytest.mark.parametrize("name", models.MODELS)
def test_the_control_flow_of_torch_gives_its_answers_at_unseen_sizes_and_values(
    name: str, plain: Callable[..., list[torch.Tensor]]
) -> None:
    model = made(name)
    exported = tp.export(model, (torch.randn(3, 4),), dynamic=DYNAMIC)
    assert exported.route == "export"
    session = tp.session(exported.model)
    for size, shift in ((6, 0.7), (2, -0.7), (9, 0.1), (4, -0.1)):
        x = torch.randn(size, 4) + shift
        given = list(session.run({"x": x.numpy()}).values())
        for ours, theirs in zip(given, plain(model, x), strict=True):
            torch.testing.assert_close(torch.as_tensor(ours), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["on_a_size", "counted", "scan_of_choices", "MappedWithArguments"])
def test_torch_itself_gives_what_the_operators_are_said_to_do(
    name: str, plain: Callable[..., list[torch.Tensor]]
) -> None:
    model, x = made(name), torch.randn(5, 4)
    with torch.no_grad():
        for own, theirs in zip(output_tensors(model(x.clone()))[1], plain(model, x), strict=True):
            torch.testing.assert_close(own, theirs)


def operators(exported: tp.Exported) -> Counter[str]:
    return Counter(node.op_type for node in exported.model.graph.all_nodes())


def test_a_loop_of_fixed_length_stays_a_loop() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return models.scan(lambda carry, row: (carry + row, carry), torch.zeros(4), x)[1]  # type: ignore[no-any-return]

    assert operators(tp.export(model, (torch.randn(50, 4),)))["Loop"] == 1


def test_rows_that_a_loop_gives_are_not_put_together_round_by_round() -> None:
    found = operators(tp.export(models.running_sum, (torch.randn(3, 4),), dynamic=DYNAMIC))
    assert found["Loop"] == 1
    assert not found["Concat"]


def test_an_associative_scan_takes_as_many_rounds_as_its_length_has_digits() -> None:
    found = operators(tp.export(models.associative, (torch.randn(8, 4),)))
    assert not found["Loop"]
    assert found["Max"] == 3


def test_a_program_with_control_flow_is_captured_again_where_torch_cannot_translate_it() -> None:
    def body(row: torch.Tensor) -> torch.Tensor:
        return row.softmax(0)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return models.map_(body, x)  # type: ignore[no-any-return]

    program = torch.export.export(Model(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    exported = tp.export(program, (torch.randn(3, 4),))
    assert "the control flow of a program captured again" in exported.attempts[-1].repairs
    x = torch.randn(7, 4)
    (given,) = tp.session(exported.model).run({"x": x.numpy()}).values()
    torch.testing.assert_close(torch.as_tensor(given), x.softmax(1))


if hasattr(torch, "switch"):  # new in torch 2.15

    def test_a_switch_takes_the_branch_of_its_number() -> None:
        def model(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            return torch.switch(number, (lambda x: x + 1, lambda x: x * 2, lambda x: x), (x,))  # type: ignore

        session = tp.session(tp.export(model, (torch.randn(3, 4), torch.tensor(1)), dynamic=DYNAMIC).model)
        x = torch.randn(5, 4)
        for number, theirs in enumerate((x + 1, x * 2, x, x)):
            (given,) = session.run({"x": x.numpy(), "number": torch.tensor(number).numpy()}).values()
            torch.testing.assert_close(torch.as_tensor(given), theirs)
