"""Layers put back to float: the model is then the float one, and the search leaves the fewest."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import torchport as tp
from torchport.files import onnx_files
from torchport.optimization.accuracy import Accuracy
from torchport.optimization.calibration import given_data
from torchport.optimization.float_layers import QdqModel, QuantizedModel, fewest_in_float, rank
from torchport.optimization.preparation import prepared
from torchport.optimization.quantizer_process import QuantizerProcess
from torchport.optimization.scheme import Scheme
from torchport.results import TensorInfo


class Net(nn.Module):
    """Relu, a clip and a residual behind convolutions, a norm behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        x = torch.clamp(self.b(x) + x, 0, 6)
        return self.head(self.norm(x.flatten(2).transpose(1, 2))).mean(1)


@pytest.fixture(scope="module", params=["onnxruntime", "nncf"])
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, QdqModel]:
    """The float file and its quantized model."""
    folder = tmp_path_factory.mktemp("layers")
    torch.manual_seed(0)
    tp.export(Net().eval(), (torch.randn(1, 3, 8, 8),), output=folder / "net.onnx")
    original = prepared(onnx_files.load(folder / "net.onnx"))
    source = onnx_files.save(original, folder / "float.onnx", check=False)
    (folder / "samples").mkdir()
    given = [{"x": np.random.default_rng(n).normal(size=(1, 3, 8, 8)).astype(np.float32)} for n in range(6)]
    data = given_data(given, [TensorInfo("x", "float32", (1, 3, 8, 8))], {}, folder / "samples", extras=False)
    target = folder / "quantized.onnx"
    with QuantizerProcess(limit=300, memory=None) as process:
        scheme = Scheme("static-int8", request.param, "min-max")
        process.static(source, target, scheme, (data.folder, data.calibration), [])
    return folder / "net.onnx", QdqModel(target, original, folder)


def outputs(path: Path) -> np.ndarray:
    x = np.random.default_rng(9).normal(size=(1, 3, 8, 8)).astype(np.float32)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_with_every_layer_in_float_the_model_is_the_float_one(quantized: tuple[Path, QdqModel]) -> None:
    path, model = quantized
    assert len(model.layers) >= 3
    np.testing.assert_allclose(outputs(model.without(model.layers)), outputs(path), rtol=1e-4, atol=1e-5)
    assert np.abs(outputs(model.without(())) - outputs(path)).max() > 1e-4


def test_each_layer_alone_makes_less_noise_than_all_together_twice(quantized: tuple[Path, QdqModel]) -> None:
    path, model = quantized
    reference = outputs(path)

    def noise(left: Collection[str]) -> float:
        return float(((outputs(model.without(left)) - reference) ** 2).sum())

    alone = {name: noise([other for other in model.layers if other != name]) for name in model.layers}
    assert max(alone.values()) < 2 * noise(()) + 1e-3 * float((reference**2).sum())


def test_what_nothing_quantized_needs_any_more_is_gone(quantized: tuple[Path, QdqModel]) -> None:
    _, model = quantized
    nodes = [n.op_type for n in onnx_files.load(model.without(model.layers)).graph]
    assert nodes.count("QuantizeLinear") <= 1  # of an output


class Pretended(QuantizedModel):
    """A model whose noise is the sum of its quantized layers' numbers."""

    def __init__(self, noise: dict[str, float]) -> None:
        self.layers = tuple(noise)
        self.noise_of_layer = noise
        self.left: dict[Path, frozenset[str]] = {}

    def without(self, names: Collection[str]) -> Path:
        path = Path(f"without-{len(self.left)}")
        self.left[path] = frozenset(names)
        return path

    def noise(self, path: Path) -> float:
        return sum(n for name, n in self.noise_of_layer.items() if name not in self.left[path])

    def measure(self, path: Path, limit: float) -> Accuracy:
        noise = self.noise(path)
        return Accuracy((), 1, problem="" if noise <= limit else f"noise {noise}")


@pytest.mark.parametrize("limit", [100, 30, 18, 5, 1])
def test_the_fewest_layers_are_left_those_that_hurt_most_first(limit: float) -> None:
    noise = {f"layer{n}": 1.0 for n in range(18)} | {"worst": 30.0, "bad": 10.0}
    model = Pretended({name: noise[name] for name in sorted(noise)})
    found = fewest_in_float(
        model, lambda path: model.measure(path, limit), model.noise, seconds=60, say=lambda text: None
    )
    needed = {100: (), 30: ("worst",)}.get(int(limit))
    if needed is not None:
        assert found.left == needed
    assert found.accuracy.ok
    total = sum(noise.values())
    kept = sorted(noise.values(), reverse=True)
    least = next(k for k in range(len(kept)) if total - sum(kept[:k]) <= limit)
    assert len(found.left) == least
    assert found.left[:2] == ("worst", "bad")[: len(found.left)]


def test_no_layer_is_left_quantized_where_every_one_is_too_much() -> None:
    model = Pretended({"a": 5.0, "b": 7.0})
    found = fewest_in_float(model, lambda path: model.measure(path, 1), model.noise, seconds=60, say=lambda text: None)
    assert found.path is None
    assert list(found.noise) == ["b", "a"]


def test_a_ranking_that_runs_out_of_time_keeps_what_it_has() -> None:
    model = Pretended({"a": 5.0, "b": 7.0})
    assert rank(model, model.noise, seconds=-1, say=lambda text: None) == {}
