"""Without any one private part a plain model is still exported and proven, and doctor names what is off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torchport as tp
from torchport.errors import MissingPartError
from torchport.operators import library
from torchport.torch_compat import parts

SCRIPT = Path(__file__).parent / "without_part.py"
QUICK = ("_call_op", "pytree", "shapes_log", "HigherOrderOperator", "rnn_functions")
BATCHES = 4
NAMES = list(parts.PARTS)


def vanish(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = parts.PARTS[name]
    monkeypatch.setitem(parts.PARTS, name, parts.Part(f"{wanted.path}_that_is_gone", wanted.feature))
    parts.part.cache_clear()


def reports(names: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(QUICK), id="quick"),
        *(pytest.param(NAMES[n::BATCHES], id=f"batch {n}", marks=pytest.mark.parts) for n in range(BATCHES)),
    ],
)
def test_models_are_exported_without_a_part(names: list[str]) -> None:
    found = reports(names)
    assert [report["part"] for report in found] == names
    for report in found:
        assert "error" not in report, report
        for model in (report["plain"], report["dynamic"]):
            assert (model["route"], model["proven"]) == ("export", True), report
        assert parts.PARTS[report["part"]].feature in report["doctor"][report["part"]]


def test_every_part_is_there() -> None:
    """On a new release this names the parts that moved."""
    assert parts.missing() == ()


def test_an_export_without_a_part_has_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    vanish("_call_op", monkeypatch)
    exported = tp.export(torch.nn.Linear(3, 2), (torch.randn(2, 3),))
    assert exported.proven
    assert any("exact Python numbers in float64 models" in finding.message for finding in exported.findings)


def test_a_part_with_other_parameters_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.PARTS, "made up", parts.Part("torch:is_tensor", "a feature", ("obj", "other")))
    with pytest.raises(MissingPartError, match="has other parameters than obj, other") as caught:
        parts.part("made up")
    assert caught.value.part == "made up"


def test_a_class_without_an_attribute_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        parts.PARTS, "made up", parts.Part("torch.nn:Identity", "a feature", attributes=("forward", "x"))
    )
    assert not parts.has("made up")
    assert [(one.name, one.feature) for one in parts.missing()] == [("made up", "a feature")]
    assert "has no x" in parts.missing()[0].reason


def test_a_patched_part_is_as_before_afterwards() -> None:
    own = torch.nn.Module._apply
    with parts.patched("Module._apply", lambda original: (original, "ours")):
        assert torch.nn.Module._apply == (own, "ours")  # type: ignore[comparison-overlap]
    assert torch.nn.Module._apply is own


def test_a_repair_whose_library_file_does_not_load_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer is captured by torch's own means then, for the example's length."""
    plain = library.file

    def file(name: str) -> Any:
        if name == "recurrent":
            raise MissingPartError("feature off: operators of operators/library/recurrent.py", part=name)
        return plain(name)

    monkeypatch.setattr(library, "file", file)
    exported = tp.export(torch.nn.LSTM(3, 2), (torch.randn(4, 1, 3),))
    assert exported.proven
    assert any("operators/library/recurrent.py" in finding.message for finding in exported.findings)


def test_a_newer_release_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "TESTED", ("2.1.0",))
    parts._untested_once.cache_clear()
    with parts.noted() as first, parts.noted() as second:
        assert ["is newer than the releases" in finding.message for finding in first] == [True]
        assert second == []
    monkeypatch.undo()
    parts._untested_once.cache_clear()
    assert parts.untested_release() == ""


def test_a_guard_that_is_not_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchport.capture import guards

    assert guards.reads_guards()
    monkeypatch.setattr(guards, "GUARD_ADDED", guards.re.compile("another text"))
    guards.reads_guards.cache_clear()
    exported = tp.export(torch.nn.Linear(3, 2), (torch.randn(2, 3),), dynamic={"input": {0: "n"}})
    guards.reads_guards.cache_clear()
    assert any(finding.message == guards.UNREAD_GUARDS for finding in exported.findings)
