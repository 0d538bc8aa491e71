"""Sizes at which a model fails are told apart from those at which it is right, in a few runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchport as tp
from torchport.errors import EngineError, InputError, ProofError
from torchport.results import Bound, Dim
from torchport.verification.bounds import as_dims, dims_text, find_bounds
from torchport.verification.values import ProofInput, example_sizes
from torchport.verification.verifier import Verifier

Array = np.ndarray[Any, Any]


def bounds(good: Callable[[int], bool], size: int, *, fails: bool = False) -> tuple[dict[str, Bound], int]:
    """The bounds found for a model that is right at good sizes, and the number of its runs."""
    inputs = [ProofInput("x", np.ones((2, size), np.float32), {1: Dim("n")})]
    runs = 0

    def reference(arrays: Sequence[Array]) -> list[Array]:
        return [arrays[0] * 2]

    def candidate(feeds: Any) -> dict[str, Array]:
        nonlocal runs
        runs += 1
        if good(feeds["x"].shape[1]):
            return {"y": feeds["x"] * 2}
        if fails:
            raise EngineError("Concat: sizes differ")
        return {"y": feeds["x"] * 3}

    verifier = Verifier(reference, inputs, ["y"], first=reference([inputs[0].example]))
    proof = verifier.verify(candidate)
    runs = 0
    return find_bounds(proof, example_sizes(inputs), lambda s: verifier.run_at(candidate, s)), runs


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("smallest", [2, 5, 8, 13, 16])
def test_the_smallest_size_is_found(smallest: int, fails: bool) -> None:
    found, runs = bounds(lambda n: n >= smallest, 16, fails=fails)
    assert found == {"n": Bound(smallest)}
    assert runs <= 14


@pytest.mark.parametrize("step", [2, 4, 8])
def test_multiples_are_found(step: int) -> None:
    assert bounds(lambda n: n % step == 0, 32)[0] == {"n": Bound(0, step)}


def test_multiples_from_a_size_on_are_found() -> None:
    assert bounds(lambda n: n % 2 == 0 and n >= 8, 32)[0] == {"n": Bound(8, 2)}


def test_a_model_that_is_wrong_everywhere_else_has_no_bound() -> None:
    assert bounds(lambda n: n == 16, 16)[0] == {}
    assert bounds(lambda n: n in (16, 17, 31), 16)[0] == {}


def test_bounds_are_written_as_the_command_line_takes_them() -> None:
    dims = {0: Dim("batch"), 2: Dim("h"), 3: Dim("w")}
    narrowed = as_dims(dims, {"h": Bound(8), "w": Bound(16, 8)})
    assert dims_text("x", narrowed) == "x:0=batch,2=h[8..],3=8*w[2..]"


class Small(nn.Module):
    """A branch on a size: the route `export` keeps the side of the example."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 3 if x.shape[1] < 5 else x * 2


DYNAMIC = {"x": {0: "batch", 1: "n"}}


def test_a_refusal_gives_the_line_that_bounds_the_size() -> None:
    with pytest.raises(ProofError, match="n from 5 on") as caught:
        tp.export(Small(), (torch.randn(2, 16),), dynamic=DYNAMIC, route="export")
    assert "--dynamic 'x:0=batch,1=n[5..]'" in str(caught.value.next_step)


def test_narrow_takes_the_bounds_and_the_session_holds_to_them(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    exported = tp.export(Small(), (torch.randn(2, 16),), dynamic=DYNAMIC, route="export", narrow=True, output=path)
    assert exported.proof.passed
    session = tp.session(path)
    x = torch.randn(3, 5)
    assert torch.equal(session(x), x * 2)
    with pytest.raises(InputError, match="dimension 'n' is 4; the model was exported for n from 5 on"):
        session(torch.randn(3, 4))
    assert tp.verify(path, Small(), (torch.randn(2, 16),)).passed


def test_multiples_can_be_declared_in_words() -> None:
    exported = tp.export(Small(), (torch.randn(2, 16),), dynamic=["x:1=8*n"], route="export")
    assert exported.inputs[0].shape == (2, "8*n")
    assert {c.shapes["x"][1] % 8 for c in exported.proof.cases} == {0}
