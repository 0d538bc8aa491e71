"""Sizes that Python or a tensor turns into numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from math import sqrt

import pytest
import torch
from torch import nn

import torchport as tp
from torchport.capture.repairs.symbolic_sizes import symbolic_sizes

X = torch.randn(3, 12)
ROWS = {"x": {0: "rows", 1: "n"}}


@pytest.fixture(autouse=True)
def _no_debug_log() -> Iterator[None]:
    """torch writes a trace of every symbolic step if anyone listens, as pytest does: a minute for each of these."""
    logging.disable(logging.DEBUG)
    yield
    logging.disable(logging.NOTSET)


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x.shape[1] * 0.5)] * 2


class Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int(x.shape[1] / 3 + 0.5)
        return x.new_ones(n + int(sqrt(x.shape[1]))) / math.sqrt(float(x.shape[1])) + x.sum()


class Chained(nn.Module):
    """Errors while a size is read become errors of the library's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            n = int(x.shape[1])
        except Exception as error:
            raise ValueError("the input has no size") from error
        return x[:, : n // 2] * float(n)


class Divided(nn.Module):
    """As in Longformer: the number of windows is a tensor, and a size again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = torch.div(x.shape[1], 4, rounding_mode="trunc")
        kept = x[:, : windows * 4]
        assert kept.shape[1] % 4 == 0
        count = int(windows) if isinstance(windows, torch.Tensor) else windows
        return kept.reshape(x.shape[0], count, 4) * 2 + torch.tensor(x.shape[1]).sqrt()


def _wrong_alone(model: nn.Module) -> bool:
    """Whether torch's exporter fails, or gives a model that is wrong at another size."""
    shapes = (dict.fromkeys((0, 1), torch.export.Dim.AUTO),)
    try:
        captured = torch.export.export(model, (X,), dynamic_shapes=shapes, strict=False)
        program = torch.onnx.export(captured, dynamo=True, verbose=False)
    except (RuntimeError, ValueError, torch.onnx.OnnxExporterError):
        return True
    assert program is not None
    session = tp.session(program.model)
    try:
        return any(not _same(session(x), model(x)) for x in (torch.randn(2, 4), torch.randn(2, 16)))
    except tp.errors.TorchportError:
        return True


def _same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [Half(), Rounded(), Chained(), Divided()])
def test_a_size_stays_a_size(model: nn.Module) -> None:
    assert _wrong_alone(model.eval())
    exported = tp.export(model, (X,), dynamic=ROWS, route="export")
    assert symbolic_sizes.name in exported.attempts[0].repairs
    session = tp.session(exported.model)
    for n in (4, 7, 10, 16, 29, 100):
        x = torch.randn(2, n)
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_capture_that_fixes_a_size_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []

    class Reading(Half):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = super().forward(x)
            if isinstance(x.shape[1], torch.SymInt):
                passed.append(str(half.shape[1]))
            return half

    exported = tp.export(Reading().eval(), (X,), dynamic=ROWS, route="export")
    assert exported.route == "export"
    assert passed
    assert not [size for size in passed if size.isdecimal()]


def test_the_names_of_the_model_are_left_as_they_were() -> None:
    with symbolic_sizes.active(Half()):
        assert isinstance(3, int)
        assert not isinstance("3", int)
        assert int("11", 2) == 3
        assert (3).__class__ == int  # noqa: E721 - some models ask so
        assert "int" in globals()
        assert math.isqrt(17) == 4
        assert math.pi == pytest.approx(3.14159265)
        assert sqrt(4.0) == 2.0
        assert max([1, 2], key=lambda n: -n) == 1
    assert "int" not in globals()
    assert sqrt is math.sqrt


def test_a_value_is_still_no_size() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return x * 2
            return x.flip(0)

    with pytest.raises(tp.errors.CaptureError, match="no route"):
        tp.export(Counts(), (X,), dynamic=ROWS, route="export")
