"""Layers that are slower in int8 are found by their kernels' times, and left in float where that is faster."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchport as tp
from torchport.benchmark.bench_table import BenchRow, BenchTable
from torchport.engines.protocol import OpenOptions
from torchport.optimization import quantizing
from torchport.optimization.layer_times import layer_times, slower_layers
from torchport.optimization.quantization_report import Speed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float and an int8 network of three convolutions."""
    place = tmp_path_factory.mktemp("times")
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.ReLU6(), nn.Conv2d(16, 8, 3))
    )
    tp.export(net.eval(), (torch.randn(1, 3, 32, 32),), output=place / "net.onnx", input_names=["x"])
    tp.quantize(place / "net.onnx", output=place / "int8.onnx", seconds=0, max_drop="20%")
    return place


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", ["net", "int8"])
def test_every_convolution_has_its_time_float_or_int8(folder: Path, engine: str, name: str) -> None:
    layers = [str(n.name) for n in tp.graph.load(folder / "net.onnx").graph if n.op_type == "Conv"]
    feeds = {"x": np.zeros((1, 3, 32, 32), np.float32)}
    found = layer_times(engine, folder / f"{name}.onnx", OpenOptions(threads=1), feeds, layers, 0.1)
    assert set(found) == set(layers)
    assert all(0 < seconds < 0.05 for seconds in found.values())
    assert len(set(found.values())) == len(layers)  # none has a share of all


def test_the_profile_of_an_int8_model_names_its_convolutions(folder: Path) -> None:
    found = tp.profile(folder / "int8.onnx", threads=1, seconds=0.2, compare_threads=False)
    names = {str(n.name) for n in tp.graph.load(folder / "net.onnx").graph if n.op_type == "Conv"}
    assert names <= {node.name for node in found.nodes if node.seconds > 0}


def test_an_engine_that_counts_no_times_tells_none(folder: Path) -> None:
    feeds = {"x": np.zeros((1, 3, 32, 32), np.float32)}
    assert layer_times("reference", folder / "net.onnx", OpenOptions(), feeds, ["a"], 0.1) == {}


def test_a_layer_is_slower_if_it_loses_a_hundredth_of_a_run() -> None:
    before = {"same": 1.0, "slower": 1.0, "worst": 1.0, "little": 0.001}
    after = {"same": 1.02, "slower": 1.5, "worst": 3.0, "little": 0.005, "unknown": 9.0}
    assert slower_layers(before, after, 10.0) == ("worst", "slower")


@pytest.mark.parametrize(("pays", "left"), [(True, 1), (False, 0)])
def test_a_slower_layer_is_left_in_float_only_if_the_whole_gets_faster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pays: bool, left: int
) -> None:
    def times(engine: str, path: Path, options: Any, feeds: Any, layers: Collection[str], seconds: float) -> Any:
        slow = "float" not in path.name
        return {name: (1.0 if slow and name == min(layers) else 0.1) for name in layers}

    measured = [Speed(2.0, 1.9, 2.1, True, 1.0, 0.5), Speed(4.0, 3.9, 4.1, True, 1.0, 0.25)]
    row = BenchRow("a", "a", "onnxruntime", 1, {}, 1, "runs")
    monkeypatch.setattr(quantizing, "layer_times", times)
    monkeypatch.setattr(
        quantizing, "speeds", lambda a, others, c: (measured[: len(others)], BenchTable((), "", (), (row,) * 3))
    )
    monkeypatch.setattr(quantizing, "is_faster", lambda table, number, than: pays)
    found = tp.quantize(folder / "net.onnx", max_drop="20%", seconds=0.1)
    assert [layer.why for layer in found.layers].count("slower in int8") == left
    assert found.speed is not None
    assert found.speed.ratio == (4.0 if pays else 2.0)
