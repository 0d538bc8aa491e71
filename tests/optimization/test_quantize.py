"""tp.quantize and torchport quantize: int8 within limits, proven on samples that were held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchport as tp
from torchport.benchmark.bench_table import BenchRow, BenchTable, SpeedVerdict
from torchport.cli.main import cli
from torchport.errors import InputError, OptionError, QuantizationError, RandomModelError, SaveError
from torchport.irtools.metadata import origin_of, read
from torchport.optimization import gain, quantizing
from torchport.optimization.quantization_report import Quantized

INT8 = ("QuantizeLinear", "DequantizeLinear")


class Classifier(nn.Module):
    """Convolutions, a residual and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(image))
        x = x + torch.relu(self.conv(x))
        return self.head(x.mean((2, 3)))


class TwoWays(nn.Module):
    """A sum of a plain way and of one whose activations have an outlier that int8 cannot hold beside the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(32, 32)
        self.harmed = nn.Linear(32, 32)
        self.after = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = x * torch.cat([torch.full((1,), 300.0), torch.ones(31)])
        return self.after(torch.tanh(self.plain(x))) + self.harmed(spread)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models with 12 samples each."""
    place = tmp_path_factory.mktemp("quantize")
    torch.manual_seed(0)
    two = TwoWays()
    with torch.no_grad():
        two.harmed.weight[:, 0] = 0.0  # the outlier itself counts for nothing
    exports = [("net", Classifier(), (2, 3, 12, 12), "image"), ("two", two, (2, 32), "x")]
    for name, model, shape, given in exports:
        tp.export(model.eval(), (torch.randn(shape),), output=place / f"{name}.onnx", dynamic={given: {0: "batch"}})
        (place / name).mkdir()
        rng = np.random.default_rng(1)
        for n in range(12):
            np.savez(place / name / f"s{n}.npz", **{given: rng.normal(size=(1, *shape[1:])).astype(np.float32)})
    return place


def held_out(folder: Path, name: str) -> list[dict[str, Any]]:
    """Every fourth sample, in the order of the files."""
    return [dict(np.load(folder / name / f"s{n}.npz")) for n in (3, 7, 11)]


def outputs(path: Path, feeds: list[dict[str, Any]]) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, f)[0] for f in feeds]).astype(np.float64)


def operators(path: Path) -> list[str]:
    return [n.op_type for n in tp.graph.load(path).graph]


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Quantized:
    return tp.quantize(folder / "net.onnx", folder / "net", output=folder / "int8.onnx", seconds=0)


def test_the_figures_are_those_of_onnx_runtime_on_the_samples_that_were_held_out(folder: Path, quantized: Any) -> None:
    feeds = held_out(folder, "net")
    a, b = (outputs(folder / name, feeds) for name in ("net.onnx", "int8.onnx"))
    cosine = float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    sqnr = 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())
    assert quantized.accuracy.samples == 3
    assert quantized.accuracy.cosine == pytest.approx(cosine, abs=1e-9)
    assert quantized.accuracy.sqnr == pytest.approx(sqnr, abs=1e-6)
    assert quantized.accuracy.top1 == np.mean(a.argmax(1) == b.argmax(1))
    assert 0.99 <= cosine < 1


def test_weights_take_a_quarter_and_every_layer_is_in_the_table(folder: Path, quantized: Any) -> None:
    assert quantized.bytes < 0.4 * quantized.float_bytes
    kinds = {layer.operator: layer.kept for layer in quantized.layers}
    assert kinds["Conv"] == kinds["Gemm"] == "quantized"
    assert set(INT8) <= set(operators(folder / "int8.onnx"))
    assert quantized.calibration_samples == 9


def test_names_dimensions_origins_and_the_record_are_in_the_saved_file(folder: Path, quantized: Any) -> None:
    model, original = tp.graph.load(folder / "int8.onnx"), tp.graph.load(folder / "net.onnx")
    shapes = [[(v.name, str(v.shape)) for v in (*m.graph.inputs, *m.graph.outputs)] for m in (model, original)]
    assert shapes[0] == shapes[1]
    convolutions = [n for n in model.graph if n.op_type == "Conv"]
    assert all("test_quantize.py" in origin_of(n).source for n in convolutions)
    assert all("test_quantize.py" in origin_of(n).source for n in model.graph if n.op_type in INT8)
    record = read(model)["quantization"]
    assert record["name"] == "static-int8"
    assert record["cosine"] == pytest.approx(quantized.accuracy.cosine)
    assert "proof" in read(original)
    assert "proof" not in read(model)


def test_the_layer_that_hurts_is_left_in_float_and_no_other(folder: Path, tmp_path: Path) -> None:
    found = tp.quantize(
        folder / "two.onnx",
        folder / "two",
        output=tmp_path / "int8.onnx",
        max_drop="0.1%",
        calibration="min-max",
        seconds=0,
    )
    layers = {layer.name: layer for layer in found.layers}
    left = [name for name, layer in layers.items() if layer.kept == "float" and layer.why.startswith("hurts")]
    assert len(left) <= 3
    worst = max(layers.values(), key=lambda layer: layer.noise or 0)
    assert worst.name in left
    assert worst.why == "hurts most"
    assert found.quantized_layers >= 2
    feeds = held_out(folder, "two")
    a, b = (outputs(path, feeds) for path in (folder / "two.onnx", tmp_path / "int8.onnx"))
    assert (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) >= 0.999
    assert read(tp.graph.load(tmp_path / "int8.onnx"))["quantization"]["float_layers"]


def test_nothing_is_saved_that_loses_more_than_was_allowed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="loses more than was allowed") as caught:
        tp.quantize(folder / "net.onnx", folder / "net", output=tmp_path / "a.onnx", max_drop={"sqnr": 120}, seconds=0)
    assert "--max-drop" in str(caught.value.next_step)
    assert not list(tmp_path.iterdir())


def test_dynamic_int8_needs_no_data_and_leaves_convolutions_alone(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    found = tp.quantize(folder / "net.onnx", output=path, scheme="dynamic-int8", seconds=0)
    assert operators(path).count("Conv") == 2
    assert "MatMulInteger" in operators(path)
    assert found.calibration_samples == 0
    assert {layer.kept for layer in found.layers if layer.operator == "Conv"} == {"float"}
    assert "made up" in str(found)


def test_a_metric_of_the_user_guards_with_labels_that_lie_beside_the_inputs(folder: Path, tmp_path: Path) -> None:
    session = tp.session(folder / "net.onnx")
    for n in range(8):
        image = np.random.default_rng(n).normal(size=(1, 3, 12, 12)).astype(np.float32)
        np.savez(tmp_path / f"s{n}.npz", image=image, label=np.argmax(session.run({"image": image})["output"], axis=1))

    def accuracy(outputs: Any, sample: Any) -> float:
        return float(np.mean(np.argmax(next(iter(outputs.values())), axis=1) == sample["label"]))

    found = tp.quantize(folder / "net.onnx", tmp_path, metric=accuracy, max_drop="50%", seconds=0)
    assert found.accuracy.metric_before == 1.0
    assert found.accuracy.metric_after is not None
    broken = iter([1.0, 1.0])
    with pytest.raises(QuantizationError, match=r"metric -1 \(float 1\)"):
        tp.quantize(folder / "net.onnx", tmp_path, metric=lambda o, s: next(broken, -1.0), max_drop=0.1, seconds=0)
    with pytest.raises(InputError, match="no input 'label'"):
        tp.quantize(folder / "net.onnx", tmp_path, seconds=0)


def test_a_metric_that_is_not_a_number_fails(folder: Path) -> None:
    values = iter([1.0, 1.0, 1.0])
    with pytest.raises(QuantizationError, match=r"metric nan \(float 1\)"):
        tp.quantize(
            folder / "net.onnx", folder / "net", metric=lambda o, s: next(values, float("nan")), max_drop=0.5, seconds=0
        )


def test_nncf_quantizes_for_openvino_within_the_limit(folder: Path, tmp_path: Path) -> None:
    found = tp.quantize(folder / "net.onnx", folder / "net", engine="openvino", output=tmp_path / "a.onnx", seconds=0)
    assert "nncf" in found.scheme
    feeds = held_out(folder, "net")
    a = outputs(folder / "net.onnx", feeds)
    session = tp.session(tmp_path / "a.onnx", "openvino")
    b = np.concatenate([next(iter(session.run(f).values())) for f in feeds])
    assert (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(found.accuracy.cosine, abs=1e-4)


@pytest.mark.parametrize("calibration", ["percentile", "entropy", "mse"])
def test_every_calibration_gives_a_model_near_the_float_one(folder: Path, calibration: str) -> None:
    found = tp.quantize(folder / "net.onnx", folder / "net", calibration=calibration, max_drop="20%", seconds=0)
    assert calibration in found.scheme
    assert found.accuracy.cosine is not None
    assert found.accuracy.cosine > 0.95


def test_one_number_for_a_weight_and_a_zero_in_the_middle_can_be_asked_for(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    tp.quantize(
        *(folder / "net.onnx", folder / "net"),
        output=path,
        per_channel=False,
        symmetric=True,
        max_drop="10%",
        seconds=0,
    )
    for node in (n for n in tp.graph.load(path).graph if n.op_type in INT8):
        assert node.inputs[1].const_value.size == 1
        assert not node.inputs[2].const_value.numpy().any()


# What is measured


def table_with(ratio: float, *, differs: bool) -> BenchTable:
    rows = tuple(
        BenchRow(n, n, "onnxruntime", 1, {}, 1, "runs", median_seconds=s) for n, s in [("a", ratio), ("b", 1.0)]
    )
    return BenchTable(
        ("a", "b"), "a", (), rows, (SpeedVerdict("a", "b", {}, 1, ratio, 0.9 * ratio, 1.1 * ratio, differs),)
    )


def test_a_model_that_is_slower_is_refused_and_not_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "bench", lambda *a, **k: table_with(0.5, differs=True))
    monkeypatch.setattr(quantizing, "slower_layers", lambda *a: ())
    with pytest.raises(QuantizationError, match="slower in onnxruntime"):
        tp.quantize(folder / "net.onnx", folder / "net", output=tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_a_difference_within_the_noise_is_said_and_the_smaller_file_is_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "bench", lambda *a, **k: table_with(1.02, differs=False))
    monkeypatch.setattr(quantizing, "slower_layers", lambda *a: ())
    found = tp.quantize(folder / "net.onnx", folder / "net", output=tmp_path / "a.onnx")
    assert "no difference to float32 beyond the noise" in str(found)
    assert (tmp_path / "a.onnx").is_file()


def test_the_time_is_measured_beside_the_float_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    tp.export(layers.eval(), (torch.randn(64, 512),), output=tmp_path / "mlp.onnx")
    found = tp.quantize(tmp_path / "mlp.onnx", threads=1, seconds=0.3, max_drop="5%")
    assert found.speed is not None
    assert found.speed.ratio == pytest.approx(found.speed.float_seconds / found.speed.seconds, rel=0.5)
    assert not found.speed.slower


# What cannot be meant


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((1, 3, 12, 12), np.float32)}, "there is no input 'x'"),
        ({"image": np.zeros((1, 3, 12, 12))}, "is float64, the model takes float32"),
        ({"image": np.zeros((1, 3, 9, 12), np.float32)}, "size 9 at axis 2"),
        ({"image": np.zeros((3, 12, 12), np.float32)}, "has rank 3"),
        ({"image": np.zeros((0, 3, 12, 12), np.float32)}, "is empty"),
        ({"image": np.full((1, 3, 12, 12), np.nan, np.float32)}, "has NaN or infinity"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(folder: Path, tmp_path: Path, change: Any, words: str) -> None:
    np.savez(tmp_path / "a.npz", image=np.zeros((1, 3, 12, 12), np.float32))
    np.savez(tmp_path / "b.npz", **change)
    with pytest.raises(InputError, match=words) as caught:
        tp.quantize(folder / "net.onnx", tmp_path, seconds=0)
    assert "b.npz" in str(caught.value.where)


def test_a_folder_without_samples_is_a_mistake(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        tp.quantize(folder / "net.onnx", tmp_path, seconds=0)


@pytest.mark.parametrize(
    "drop", ["much", "-1%", "100%", 0, 1.0, float("nan"), True, {"cosin": 0.1}, {"metric": 1}, {"top1": 2}, {}]
)
def test_a_drop_that_cannot_be_meant_is_a_mistake(folder: Path, drop: Any) -> None:
    with pytest.raises(OptionError) as caught:
        tp.quantize(folder / "net.onnx", folder / "net", max_drop=drop)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "static_int8"}, "there is no scheme"),
        ({"calibration": "minmax"}, "there is no calibration"),
        ({"scheme": "dynamic-int8", "calibration": "min-max"}, "means nothing"),
        ({"seconds": -1}, "cannot be meant"),
        ({"at": {"batch": 2}}, "data is given, and sizes"),
    ],
)
def test_options_that_do_not_go_together_are_mistakes(folder: Path, options: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tp.quantize(folder / "net.onnx", folder / "net", **options)


def test_a_quantized_model_is_not_quantized_again(folder: Path, quantized: Any) -> None:
    with pytest.raises(QuantizationError, match="quantized already"):
        tp.quantize(folder / "int8.onnx", folder / "net", seconds=0)


def test_a_model_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 0, 0, 1}>
        { r = RandomNormalLike(x) s = Add(x, r) y = MatMul(s, w) }"""
    tp.graph.save(ir.from_onnx_text(text), tmp_path / "random.onnx")
    with pytest.raises(RandomModelError, match="other numbers for output 'y'"):
        tp.quantize(tmp_path / "random.onnx", seconds=0)


def test_a_model_without_layers_to_quantize_is_refused(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (int64[2,4] x) => (int64[2,4] y) { y = Neg(x) }'
    tp.graph.save(ir.from_onnx_text(text), tmp_path / "neg.onnx")
    with pytest.raises(QuantizationError, match="no layer that static-int8 can quantize"):
        tp.quantize(tmp_path / "neg.onnx", seconds=0)


def test_a_target_that_cannot_be_written_is_said_before_anything_is_computed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SaveError):
        tp.quantize(folder / "net.onnx", folder / "net", output=tmp_path / "no" / "a.onnx")


def test_a_quantizer_that_takes_too_long_is_ended(folder: Path) -> None:
    with pytest.raises(QuantizationError, match=r"takes longer than 0\.05 s"):
        tp.quantize(folder / "net.onnx", folder / "net", seconds=0, limit=0.05)


# The command line


def test_the_story_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    base = ["quantize", str(folder / "net.onnx"), "--data", str(folder / "net"), "-o", str(target), "--seconds", "0"]
    told = CliRunner().invoke(cli, [*base, "--max-drop", "2%", "-q"])
    assert told.exit_code == 0, told.output
    assert "held-out samples: cosine 0.99" in told.output
    assert all(len(line) <= 80 for line in told.output.splitlines() if str(tmp_path) not in line)
    found = json.loads(CliRunner().invoke(cli, [*base, "--max-drop", "cosine=0.02", "--json"]).output)
    assert found["accuracy"]["ok"]
    assert found["limits"]["cosine"] == 0.98
    assert found["layers"][0]["kept"] == "quantized"
    target.unlink()
    refused = CliRunner().invoke(cli, [*base, "--max-drop", "sqnr=120", "-q"])
    assert refused.exit_code == 1
    assert "refused: static-int8 loses more" in refused.output
    assert not target.exists()
    assert CliRunner().invoke(cli, [*base, "--max-drop", "lots", "-q"]).exit_code == 2
    assert CliRunner().invoke(cli, [*base, "--metric", "nothing.py:f", "-q"]).exit_code == 2
