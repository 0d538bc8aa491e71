"""Control flow on tensors survives the export, and the user's model stays as it was."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import subprocess
import sys
from typing import Any

import control_flow_models
import numpy as np
import pytest
import torch

import torchport as tp
from torchport.capture.control_flow.plan import plan_by_reading
from torchport.capture.routes import rewrite
from torchport.errors import CaptureError

DYNAMIC = {"x": {0: "batch"}}


def unseen() -> list[torch.Tensor]:
    """Inputs of sizes and values that neither the example nor the proof has."""
    random = torch.Generator().manual_seed(77)
    made = [torch.randn(size, 4, generator=random) * scale for size in (1, 2, 6) for scale in (0.3, 1.5, 6.0)]
    return [sign * x + shift for x in made for sign, shift in ((1, 0.0), (-1, 0.2), (1, -0.7))]


def answers(model: torch.nn.Module, x: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    with torch.no_grad():
        given = model(x.clone())
    given = list(given.values()) if isinstance(given, dict) else given
    return [np.asarray(v) for v in (given if isinstance(given, (list, tuple)) else [given])]


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(3)
    return control_flow_models.REWRITTEN[name]().eval()


BY_SIZES_ALONE = {"WholeNumbers", "Positions"}  # no value decides anything: repairs of sizes are enough


@pytest.mark.parametrize("name", control_flow_models.REWRITTEN)
def test_control_flow_gives_pytorchs_answers_at_unseen_values_and_sizes(name: str) -> None:
    model = made(name)
    code = type(model).forward.__code__
    exported = tp.export(model, (torch.randn(3, 4),), dynamic=DYNAMIC)
    assert exported.route == ("export" if name in BY_SIZES_ALONE else "rewrite"), [str(a) for a in exported.attempts]
    assert type(model).forward.__code__ is code
    assert "__torchport_flow__" not in vars(control_flow_models)
    session = tp.session(exported.model)
    for x in unseen():
        expected = answers(copy.deepcopy(model), x)
        given = list(session.run({"x": x.numpy()}).values())
        for own, theirs in zip(given, expected, strict=True):
            assert own.shape == theirs.shape
            np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", control_flow_models.REWRITTEN)
def test_rewritten_code_is_the_same_function_in_plain_pytorch(name: str) -> None:
    model = made(name)
    plan, refused = plan_by_reading(model)
    assert not refused
    expected = [answers(copy.deepcopy(model), x) for x in unseen()]
    with plan.in_place():
        given = [answers(copy.deepcopy(model), x) for x in unseen()]
    for own, theirs in zip(given, expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(own, theirs, strict=True))


def refusal(model: torch.nn.Module) -> str:
    with pytest.raises(tp.CaptureError) as caught:
        tp.export(model.eval(), (torch.randn(3, 4),), dynamic=DYNAMIC, route="rewrite")
    return str(caught.value)


def line_of(model: type, text: str) -> int:
    lines, first = inspect.getsourcelines(model)
    return first + next(n for n, line in enumerate(lines) if text in line)


def test_branches_of_different_types_are_refused_with_line_and_reason() -> None:
    text = refusal(control_flow_models.OtherTypes())
    assert "int64 in one branch and float32 in the other" in text
    assert f"control_flow_models.py:{line_of(control_flow_models.OtherTypes, 'if x.sum() > 0')}" in text


def test_a_generator_is_refused_with_its_line() -> None:
    text = refusal(control_flow_models.Generator())
    assert "yield" in text
    assert "control_flow_models.py:" in text


def test_try_is_refused_with_its_line() -> None:
    text = refusal(control_flow_models.Tried())
    assert "inside `try`" in text
    assert f"control_flow_models.py:{line_of(control_flow_models.Tried, 'try:')}" in text


def test_a_match_that_takes_values_apart_is_refused_with_its_line() -> None:
    text = refusal(control_flow_models.TakenApart())
    assert "inside a `match` that takes values apart" in text
    assert f"control_flow_models.py:{line_of(control_flow_models.TakenApart, 'match x.shape')}" in text


def test_a_model_without_such_control_flow_names_no_line() -> None:
    assert "named no line to rewrite" in refusal(control_flow_models.Parent())


def test_a_loop_that_writes_to_a_tensor_and_its_view_is_refused_with_its_line() -> None:
    with pytest.raises(tp.ProofError) as caught:
        tp.export(control_flow_models.WrittenBesideItsView(), (torch.randn(4, 4),), dynamic=DYNAMIC, route="rewrite")
    assert "shares its memory with another tensor that the loop uses" in str(caught.value)
    line = line_of(control_flow_models.WrittenBesideItsView, "for i in")
    assert f"control_flow_models.py:{line}" in str(caught.value)


def test_a_line_with_nothing_to_rewrite_is_named_as_such() -> None:
    text = refusal(control_flow_models.Sorted())
    assert "there is nothing to rewrite at the line" in text
    assert f"control_flow_models.py:{line_of(control_flow_models.Sorted, 'sorted(x[0])')}" in text


def test_functions_are_put_back_after_a_failure() -> None:
    code = control_flow_models.OtherTypes.forward.__code__
    refusal(control_flow_models.OtherTypes())
    assert control_flow_models.OtherTypes.forward.__code__ is code
    assert "__torchport_flow__" not in vars(control_flow_models)


def test_the_source_can_be_shown_and_kept() -> None:
    model = made("EarlyReturn")
    text = tp.rewrite(model, (torch.randn(3, 4),), dynamic=DYNAMIC)
    assert text == tp.rewrite(model)
    kept: dict[str, Any] = {"torch": torch}
    exec(text, kept)
    for x in unseen():
        np.testing.assert_array_equal(np.asarray(kept["EarlyReturn"].forward(model, x).detach()), answers(model, x)[0])


def test_a_class_made_inside_a_function_that_runs_is_rewritten() -> None:
    class Local(torch.nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x * 2
            return x

    exported = tp.export(Local(), (torch.randn(3, 4),), dynamic=DYNAMIC)
    assert exported.route == "rewrite"


def test_a_model_that_needs_no_rewrite_does_not_even_import_it() -> None:
    code = (
        "import sys, torch, torchport as tp; tp.export(torch.nn.Linear(2, 2), torch.randn(3, 2)); "
        "assert not [m for m in sys.modules if m.startswith('torchport.capture.control_flow')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_nothing_to_rewrite_is_said() -> None:
    assert tp.rewrite(torch.nn.Linear(4, 4)).startswith("# nothing to rewrite")
    assert tp.rewrite(torch.nn.Linear(4, 4), (torch.randn(3, 4),)).startswith("# nothing to rewrite")


def test_only_lines_the_capture_named_are_rewritten() -> None:
    model = made("Words")
    everything = tp.rewrite(model)
    with_example = tp.rewrite(model, (torch.randn(3, 4),), dynamic=DYNAMIC)
    assert with_example.count("flow.cond") == 3
    assert everything.count("flow.cond") == 3


def test_padding_to_a_multiple_is_put_on_and_taken_off_at_every_size() -> None:
    """At a length that needs none, `x[:, :-0]` would be empty."""
    torch.manual_seed(3)
    model = control_flow_models.PaddedToAMultiple()
    exported = tp.export(model, (torch.randn(2, 9),), dynamic={"x": {0: "batch", 1: "length"}})
    assert exported.route == "rewrite"
    session = tp.session(exported.model)
    for length in (3, 4, 6, 12, 13):
        x = torch.randn(3, length)
        (given,) = session.run({"x": x.numpy()}).values()
        np.testing.assert_allclose(given, model(x), rtol=1e-4, atol=1e-5)


class PadsToMultiple(torch.nn.Module):
    """A branch takes the quotient of a size from outside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounds = x.shape[0] / 8
        if not rounds.is_integer():
            x = torch.nn.functional.pad(x, (0, math.ceil(rounds) * 8 - x.shape[0]))
        return x.reshape(-1, 8) * 2


class PadsAndReturns(torch.nn.Module):
    """It returns before the quotient is used, and says whether it padded; what it pads to is taken off again."""

    def padded(self, x: torch.Tensor, multiple: int) -> tuple[bool, torch.Tensor]:
        length = x.shape[0]
        rounds = length / multiple
        if rounds.is_integer():
            return False, x
        return True, torch.nn.functional.pad(x, (0, math.ceil(rounds) * multiple - length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_padded, y = self.padded(x, 8)
        y = y.reshape(-1, 8).cumsum(1).reshape(-1)
        return y[: x.shape[0]] * 3 if is_padded else y


class ScalesByQuotients(torch.nn.Module):
    """Quotients that no whole numbers stand for: of a quotient, and by a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves, share = x.shape[0] / 3 / 2, 7 / x.shape[0]
        if x.sum() > 0:
            x = x * halves + share
        if halves.is_integer():
            x = x + math.floor(halves)
        return x - halves


@pytest.mark.parametrize("model", [PadsToMultiple(), PadsAndReturns(), ScalesByQuotients()])
def test_branches_take_quotients_of_sizes(model: torch.nn.Module) -> None:
    torch.manual_seed(2)
    exported = tp.export(model, (torch.randn(24),), dynamic={"x": {0: "n"}})
    assert exported.route == "rewrite"
    session = tp.session(exported.model)
    for length in (1, 6, 8, 17, 19, 24, 31, 48):
        x = torch.randn(length)
        for given in (x, x.abs(), -x.abs()):
            torch.testing.assert_close(session(given), model(given), rtol=1e-4, atol=1e-5)


def test_a_model_that_runs_at_multiples_is_taken_where_rewrite_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "whole_quotients", contextlib.nullcontext)
    exported = tp.export(PadsToMultiple(), (torch.randn(16),), dynamic={"x": {0: "n"}})
    assert [(a.route, a.outcome) for a in exported.attempts] == [
        ("export", "failed"),
        ("rewrite", "failed"),
        ("export", "passed"),
    ]
    assert "multiples of 8" in exported.attempts[0].reason
    assert str(exported.proof.bounds["n"]) == "multiples of 8"


def test_a_line_that_stops_the_capture_again_is_not_rewritten_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "whole_quotients", contextlib.nullcontext)
    tries, plain = [0], rewrite._try

    def counted(*args: Any) -> Any:
        tries[0] += 1
        return plain(*args)

    monkeypatch.setattr(rewrite, "_try", counted)
    with contextlib.suppress(tp.TorchportError):
        tp.export(PadsToMultiple(), (torch.randn(16),), dynamic={"x": {0: "n"}}, route="rewrite")
    assert 0 < tries[0] < 8


def test_a_slice_that_a_size_chooses_is_right_at_every_size() -> None:
    model = control_flow_models.SlicedBySizes()
    exported = tp.export(model, (torch.randn(2, 9),), dynamic={"x": {0: "rows", 1: "columns"}})
    session = tp.session(exported.model)
    for columns in (1, 2, 3, 4, 5, 6, 7, 12):
        x = torch.randn(3, columns)
        for own, theirs in zip(session.run({"x": x.numpy()}).values(), answers(model, x), strict=True):
            assert own.shape == theirs.shape
            np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-6)


def test_numbers_and_sizes_that_sizes_choose_are_right_at_every_size() -> None:
    torch.manual_seed(4)
    model = control_flow_models.PaddedBySizes().eval()
    exported = tp.export(model, (torch.randn(2, 2, 128),), dynamic={"x": {0: "batch", 2: "n"}})
    assert exported.route == "rewrite"
    assert not exported.proof.bounds
    session = tp.session(exported.model)
    for batch, length in ((1, 1), (2, 7), (1, 16), (3, 24), (2, 25), (2, 64), (1, 97), (2, 128), (2, 131)):
        x = torch.randn(batch, 2, length)
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_line_whose_rewriting_stops_the_capture_elsewhere_leaves_the_others_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the formulas of what conditions on sizes choose, the first line would make the length unknown."""
    model, plain = control_flow_models.PaddedBySizes().eval(), rewrite._try
    lines = inspect.getsource(type(model)).splitlines()
    first = type(model).__init__.__code__.co_firstlineno - next(n for n, line in enumerate(lines) if "__init__" in line)
    stopping, other = (
        first + next(n for n, line in enumerate(lines) if text in line) for text in ("if length <=", "if x.shape")
    )
    rewritten: list[set[int]] = []

    def stopped(request: Any, plan: Any, known: Any) -> Any:
        rewritten.append({line for function in plan.functions for line in function.lines})
        if stopping in rewritten[-1]:
            raise CaptureError("stopped elsewhere") from RuntimeError("stopped elsewhere")
        return plain(request, plan, known)

    monkeypatch.setattr(rewrite, "_try", stopped)
    exported = tp.export(model, (torch.randn(2, 2, 128),), dynamic={"x": {0: "batch", 2: "n[32..]"}}, route="rewrite")
    assert any({stopping, other} <= lines for lines in rewritten)
    assert other in rewritten[-1]
    assert stopping not in rewritten[-1]
    x = torch.randn(1, 2, 131)
    torch.testing.assert_close(tp.session(exported.model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_what_a_guard_says_in_one_branch_is_forgotten_behind_it() -> None:
    model = control_flow_models.PaddedWindows().eval()
    told: list[str] = []
    dynamic = {"x": {0: "batch", 1: "height", 2: "width"}}
    x = torch.randn(2, 8, 12)
    exported = tp.export(model, (x,), dynamic=dynamic, route="rewrite", progress=lambda line: told.append(str(line)))
    assert not [line for line in told if "other sizes" in line]
    session = tp.session(exported.model)
    for height, width in ((1, 1), (3, 9), (4, 4), (5, 12), (9, 2), (13, 13)):
        x = torch.randn(2, height, width)
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_layer_with_two_names_is_called_in_a_branch() -> None:
    torch.manual_seed(6)
    model = control_flow_models.SharedInABranch().eval()
    exported = tp.export(model, (torch.randn(3, 4),), dynamic=DYNAMIC)
    assert exported.route == "rewrite"
    session = tp.session(exported.model)
    for x in unseen():
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)
