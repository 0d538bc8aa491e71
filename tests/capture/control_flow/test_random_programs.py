"""Whatever the control flow, a rewritten function is the same function."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from random_programs import Programs

from torchport.capture import models
from torchport.capture.control_flow.plan import plan_by_reading
from torchport.capture.routes.rewrite import rewritten_program
from torchport.capture.routes.route import Request
from torchport.errors import RewriteError
from torchport.process import silence
from torchport.results import Dim

INPUTS = [torch.randn(n, generator=torch.Generator().manual_seed(n)) * k for n in (1, 2, 5) for k in (0.3, 1.0, 3.0)]


def written(folder: Path, seed: int, depth: int) -> ModuleType:
    file = folder / f"program_{seed}.py"
    file.write_text("import torch\n\n\n" + Programs(seed).function("f", depth))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(function: Any, x: torch.Tensor) -> Any:
    """The answer, or that a variable has no value on this way."""
    try:
        return function(x.clone())
    except (NameError, RewriteError):
        return "unset"


@pytest.mark.parametrize("seed", range(30))
def test_a_rewritten_program_gives_the_same_answers_in_plain_pytorch(seed: int, tmp_path: Path) -> None:
    function = written(tmp_path, seed, depth=3).f
    expected = [answer(function, x) for x in INPUTS]
    plan, refused = plan_by_reading(function)
    assert not refused
    with plan.in_place():
        given = [answer(function, x) for x in INPUTS]
    for own, theirs in zip(given, expected, strict=True):
        assert (own == theirs) if isinstance(theirs, str) else torch.equal(own, theirs)


@pytest.mark.parametrize("seed", [1, 4, 7, 10, 12])
def test_a_captured_program_gives_the_same_answers(seed: int, tmp_path: Path) -> None:
    function = written(tmp_path, seed, depth=2).f
    call = models.call(models.subject(function), (torch.randn(3),), None)
    with silence():
        _, program, _ = rewritten_program(Request(call, tuple(call.tensors), {"x": {0: Dim("n")}}, opset=18), [])
        captured = program.module(check_guards=False)
        for x in INPUTS:
            theirs = answer(function, x)
            if not isinstance(theirs, str):
                torch.testing.assert_close(captured(x.clone())[0], theirs, rtol=1e-4, atol=1e-5)
