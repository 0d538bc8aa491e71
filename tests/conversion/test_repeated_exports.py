"""An export never depends on what was exported before it: models of all routes, twice, in any order, the same bytes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

import torchport as tp

sys.path.insert(0, str(Path(__file__).parent.parent / "capture" / "control_flow"))
import torch_operator_models

ROWS = (torch.linspace(-2, 3, 12).reshape(3, 4),)
SEQUENCE = (torch.linspace(-2, 3, 40).reshape(2, 5, 4),)
OWN_FLOW = (
    *("alias", "on_a_size", "whole_number_as_result", "written_operand", "nested_branches", "Closures", "Vmap"),
    *("counted", "UntilLarge", "rows_written_in_place", "nested_loops", "Cells", "scan_of_choices", "mapped"),
    *("MappedWithArguments", "LinearRecurrence"),
)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


class Rounds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, rows = torch.zeros_like(x[0]), []
        for n in range(x.shape[0]):
            h = h * 0.5 + x[n]
            rows.append(h)
        return torch.stack(rows)


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


Job = Callable[[], tuple[Any, tuple[torch.Tensor, ...], dict[str, Any]]]
JOBS: dict[str, Job] = {
    "linear": lambda: (nn.Linear(4, 3), ROWS, {}),
    "float64": lambda: (layers().double(), (ROWS[0].double(),), {}),
    "float16": lambda: (layers().half(), (ROWS[0].half(),), {}),
    "bfloat16": lambda: (layers().bfloat16(), (ROWS[0].bfloat16(),), {}),
    "ids": lambda: (nn.Embedding(10, 4), (torch.arange(6).reshape(2, 3),), {}),
    "picture": lambda: (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), (torch.ones(2, 1, 5, 5),), {}),
    "recurrent": lambda: (nn.GRU(4, 3, batch_first=True), SEQUENCE, {}),
    "recurrent, float64": lambda: (nn.LSTM(4, 3, batch_first=True).double(), (SEQUENCE[0].double(),), {}),
    "attention": lambda: (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), SEQUENCE, {}),
    "spectrum": lambda: (Spectrum(), ROWS, {}),
    "trace": lambda: (layers(), ROWS, {"route": "trace"}),
    "script": lambda: (layers(), ROWS, {"route": "script"}),
    "branch": lambda: (Branch(), ROWS, {}),
    "rounds": lambda: (Rounds(), ROWS, {}),
    **{name: lambda name=name: (torch_operator_models.MODELS[name](), ROWS, {}) for name in OWN_FLOW},
}


def exported(name: str) -> bytes:
    torch.manual_seed(11)
    model, args, options = JOBS[name]()
    model = model.eval() if isinstance(model, nn.Module) else model
    result = tp.export(model, args, dynamic=[{0: "n"}], **options)
    return ir.to_proto(result.model).SerializeToString(deterministic=True)


def test_thirty_models_exported_twice_in_shuffled_order_have_the_same_bytes() -> None:
    assert len(JOBS) == 30
    order = [*JOBS, *JOBS]
    random.Random(16).shuffle(order)
    first: dict[str, bytes] = {}
    different = [name for name in order if first.setdefault(name, given := exported(name)) != given]
    assert different == []


def test_a_model_that_torch_compiled_before_is_exported_with_every_size_free() -> None:
    model = torch_operator_models.MODELS["on_a_size"]()
    for rows in (3, 3, 3):
        model(torch.ones(rows, 4))
    assert tp.export(model, ROWS, dynamic=[{0: "m"}]).proof.passed
    assert tp.export(model, ROWS, dynamic=[{0: "m"}]).proof.passed
