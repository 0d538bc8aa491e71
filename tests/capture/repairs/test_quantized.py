"""Quantized models: packed by torch.ao, or with the operators that PT2E leaves."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from agreement import check
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torchport as tp
from torchport.capture.repairs.quantized_layers import overflow
from torchport.torch_compat import parts

with warnings.catch_warnings():  # torch.ao.quantization is going to move to torchao
    warnings.simplefilter("ignore")
    import torch.ao.quantization as quantization
    import torch.ao.quantization.fx._decomposed
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx


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
    assert ops["Loop"] == 1
    assert ops["MatMulInteger"] == 2


class Cells(nn.Module):
    """One step of each, with a state of its own and without."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(6, 5), nn.GRUCell(5, 4)
        self.tanh, self.relu = nn.RNNCell(4, 7), nn.RNNCell(7, 3, nonlinearity="relu")

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        first, c = self.lstm(x)
        second = self.gru(first, h)
        return c, second, self.relu(self.tanh(second))


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_dynamically_quantized_cells(tmp_path: Path, dtype: torch.dtype) -> None:
    def x(batch: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 6) * scale, torch.randn(batch, 4)

    kinds = {nn.LSTMCell, nn.GRUCell, nn.RNNCell}
    model = quantization.quantize_dynamic(Cells().eval(), kinds, dtype=dtype)
    axes = {"x": {0: "batch"}, "h": {0: "batch"}}
    _, ops = check(tmp_path, model, x(2), [x(1), x(5, 4.0)], dynamic=axes)
    assert ops["MatMulInteger"] == (8 if dtype == torch.qint8 else 0)


class CellInALoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, steps = x.new_zeros(x.shape[0], 4), []
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
            steps.append(h)
        return torch.stack(steps, 1)


def test_a_dynamically_quantized_cell_in_a_loop(tmp_path: Path) -> None:
    def x(batch: int, steps: int) -> tuple[Tensor]:
        return (torch.randn(batch, steps, 6),)

    model = quantization.quantize_dynamic(CellInALoop().eval(), {nn.GRUCell})
    axes = {"x": {0: "batch", 1: "steps"}}
    exported, ops = check(tmp_path, model, x(2, 5), [x(1, 9), x(4, 1)], dynamic=axes)
    assert exported.route == "rewrite"
    assert ops["Loop"] + ops["Scan"] == 1


class PackedRows(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, last = self.layer(packed)
        last = last if isinstance(last, tuple) else (last,)
        return pad_packed_sequence(y, batch_first=True, padding_value=7.0)[0], *last


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dynamically_quantized_layers_on_packed_sequences_quantize_real_rows_only(
    tmp_path: Path, kind: type[nn.RNNBase]
) -> None:
    def given(steps: int, *lengths: int, padding: float = 0.0) -> tuple[Tensor, Tensor]:
        x = torch.randn(len(lengths), steps, 6)
        for row, length in enumerate(lengths):
            x[row, length:] = padding
        return x, torch.tensor(lengths)

    several = {"num_layers": 2} if kind is nn.LSTM else {"bidirectional": True}
    model = PackedRows(kind(6, 4, batch_first=True, **several)).eval()
    model = quantization.quantize_dynamic(model, {kind})
    axes = {"x": {0: "batch", 1: "steps"}, "lengths": {0: "batch"}}
    others = [given(4, 2, padding=50.0), given(9, 1, 7, 7, 4, padding=50.0)]  # would be the largest number
    check(tmp_path, model, given(5, 3, 5, 2), others, dynamic=axes)


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


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.bags = nn.Embedding(30, 8), nn.EmbeddingBag(20, 6, mode="sum")

    def forward(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.words(ids), self.bags(rows)


def test_quantized_embeddings_and_bags(tmp_path: Path) -> None:
    def ids(batch: int, steps: int) -> tuple[Tensor, Tensor]:
        return torch.randint(0, 30, (batch, steps)), torch.randint(0, 20, (batch, 3))

    model = Tables().eval()
    model.words.qconfig = model.bags.qconfig = quantization.float_qparams_weight_only_qconfig
    model = quantization.convert(quantization.prepare(model))
    axes = {"ids": {0: "batch", 1: "steps"}, "rows": {0: "batch"}}
    check(tmp_path, model, ids(2, 5), [ids(1, 9), ids(4, 1)], dynamic=axes)


class Picture(nn.Module):
    """Parts of a tensor whose batch is free, an average over everything, slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.slopes, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(8), nn.Linear(8, 5)
        self.pool, self.average = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.slopes(self.conv(x.clamp(-1, 1)))
        y = torch.cat([self.pool(y), self.pool(y)], 0).chunk(2, 0)[1]
        return self.last(self.average(y).flatten(1)).sigmoid()


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
def test_a_picture_quantized_by_fx_is_rounded_as_the_engine_does(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def x(batch: int) -> tuple[Tensor]:
        return (torch.randn(batch, 3, 8, 8),)

    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    prepared = prepare_fx(Picture().eval(), quantization.get_default_qconfig_mapping(engine), x(2))
    for _ in range(4):
        prepared(*x(16))
    check(tmp_path, convert_fx(prepared), x(2), [x(1), x(7)], dynamic=BATCH)


def test_the_refusal_names_an_overflow_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")
    part, has_vnni = parts.part, [False]
    asked = {"_is_vnni_supported": lambda: has_vnni[0]}
    monkeypatch.setattr(parts, "part", lambda name: asked.get(name) or part(name))
    static = nn.Sequential(torch.ao.nn.quantized.Conv2d(3, 4, 1))
    assert "calibrated" in overflow(static)
    assert not overflow(quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 4)), {nn.Linear}))
    has_vnni[0] = True
    assert not overflow(static)


def _prepared_for_training() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    model = quantization.prepare_qat(model)
    for _ in range(4):
        model(torch.randn(16, 6))
    return model.eval()


def test_fake_quantization_becomes_quantizations_and_their_inverses(tmp_path: Path) -> None:
    def x(batch: int) -> tuple[Tensor]:
        return (torch.randn(batch, 6) * 2,)

    model = _prepared_for_training().apply(quantization.disable_observer)
    exported, ops = check(tmp_path, model, x(3), [x(1), x(8)], dynamic={0: {0: "batch"}})
    assert "fake quantization in two steps" in exported.attempts[-1].repairs
    assert ops["DequantizeLinear"] == 4


def test_fake_quantization_with_observers_on_is_refused_with_the_reason() -> None:
    with pytest.raises(tp.CaptureError, match="disable_observer"):
        tp.export(_prepared_for_training(), (torch.randn(3, 6),))


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
