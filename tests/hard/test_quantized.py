"""Quantized models: packed by torch.ao, or with the operators that PT2E leaves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from agreement import check
from torch import Tensor, nn

with warnings.catch_warnings():  # torch.ao.quantization is going to move to torchao
    warnings.simplefilter("ignore")
    import torch.ao.quantization as quantization
    import torch.ao.quantization.fx._decomposed


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


BATCH = {"x": {0: "batch"}}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.last = nn.Embedding(30, 8), nn.Linear(8, 16), nn.Linear(16, 3, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.words(ids))))


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_dynamically_quantized_linear_layers(tmp_path: Path, dtype: torch.dtype) -> None:
    def ids(batch: int, steps: int) -> tuple[Tensor]:
        return (torch.randint(0, 30, (batch, steps)),)

    model = quantization.quantize_dynamic(Words().eval(), {nn.Linear}, dtype=dtype)
    axes = {"ids": {0: "batch", 1: "steps"}}
    exported, ops = check(tmp_path, model, ids(2, 5), [ids(1, 9), ids(4, 1)], dynamic=axes)
    assert "quantized layers unpacked" in exported.attempts[-1].repairs
    assert ops["MatMulInteger"] == (2 if dtype == torch.qint8 else 0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, (h, c) = self.lstm(x)
        return y, h, c


def test_a_dynamically_quantized_recurrent_layer_quantizes_its_state_at_each_step(tmp_path: Path) -> None:
    def x(batch: int, steps: int) -> tuple[Tensor]:
        return (torch.randn(batch, steps, 6),)

    model = quantization.quantize_dynamic(Recurrent().eval(), {nn.LSTM})
    axes = {"x": {0: "batch", 1: "steps"}}
    _, ops = check(tmp_path, model, x(2, 5), [x(1, 9), x(4, 1)], dynamic=axes)
    assert ops["Scan"] == 1
    assert ops["MatMulInteger"] == 2


class Static(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.relu, self.last = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(self.quant(x)))
        return self.dequant(self.last(y.unflatten(1, (4, 4)).flatten(1)))


def test_a_statically_quantized_model_becomes_quantizations_and_their_inverses(tmp_path: Path) -> None:
    def x(batch: int) -> tuple[Tensor]:
        return (torch.randn(batch, 8),)

    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"  # fbgemm overflows without VNNI
    try:
        model = Static().eval()
        model.qconfig = quantization.get_default_qconfig("qnnpack")
        prepared = quantization.prepare(quantization.fuse_modules(model, [["first", "relu"]]))
        for _ in range(4):
            prepared(*x(16))
        _, ops = check(tmp_path, quantization.convert(prepared), x(3), [x(1), x(7)], dynamic=BATCH)
    finally:
        torch.backends.quantized.engine = engine
    assert ops["QuantizeLinear"] >= 3
    assert ops["DequantizeLinear"] >= 5


class Converted(nn.Module):
    """What PT2E's convert leaves: quantizations and their inverses, a narrower range, one dynamic."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(16, 8)
        scale = weight.abs().amax(1) / 127
        self.register_buffer("values", torch.round(weight / scale.unsqueeze(1)).to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("zeros", torch.zeros(16, dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ops = torch.ops.quantized_decomposed
        narrow = (0.02, 60, 0, 127, torch.uint8)
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *narrow), *narrow)
        weight = ops.dequantize_per_channel(self.values, self.scale, self.zeros, 0, -128, 127, torch.int8)
        y = torch.relu(nn.functional.linear(x, weight, self.bias))
        wide = (0.03, 0, 0, 255, torch.uint8)
        y = ops.dequantize_per_tensor(ops.quantize_per_tensor(y, *wide), *wide)
        scale, zero = ops.choose_qparams.tensor(y, -128, 127, 1e-5, torch.int8)
        own = (scale, zero, -128, 127, torch.int8)
        return y, ops.dequantize_per_tensor.tensor(ops.quantize_per_tensor.tensor(y, *own), *own)


def test_the_operators_of_pt2e_keep_narrow_ranges_large_sums_and_exact_biases(tmp_path: Path) -> None:
    def x(batch: int) -> tuple[Tensor]:
        return (torch.randn(batch, 8) * 2,)

    _, ops = check(tmp_path, Converted(), x(3), [x(1), x(64)], dynamic=BATCH)
    assert ops["QuantizeLinear"] == ops["DequantizeLinear"] - 1 == 3
