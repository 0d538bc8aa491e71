"""Weights in int8 or int4, and float16: smaller files whose numbers are those that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import torchport as tp
from torchport.errors import OptionError, QuantizationError
from torchport.optimization.scheme import Wishes, schemes_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of matrices, as MatMul and as Gemm, and samples."""
    place = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.LayerNorm(128))
    net = nn.Sequential(block, nn.Linear(128, 64))
    shapes = {"rank3": (1, 4, 128), "rank2": (4, 128)}
    for name, shape in shapes.items():
        tp.export(net.eval(), (torch.randn(shape),), output=place / f"{name}.onnx", input_names=["x"])
        (place / name).mkdir()
        for n in range(8):
            x = np.random.default_rng(n).normal(size=shape).astype(np.float32)
            np.savez(place / name / f"s{n}.npz", x=x)
    return place


def outputs(path: Path, folder: Path) -> np.ndarray:
    feeds = [dict(np.load(folder / f"s{n}.npz")) for n in (3, 7)]
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, f)[0] for f in feeds]).astype(np.float64)


def sqnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))


@pytest.mark.parametrize(
    ("name", "options", "part", "least"),
    [
        ("rank3", {"scheme": "int8-weights"}, 0.35, 30),
        ("rank2", {"scheme": "int4-weights"}, 0.25, 12),
        ("rank2", {"scheme": "int4-weights", "method": "gptq"}, 0.25, 12),
        ("rank3", {"scheme": "int4-weights", "method": "hqq", "block": 64}, 0.25, 12),
        ("rank3", {"scheme": "int4-weights", "symmetric": False, "block": 16}, 0.35, 12),
    ],
)
def test_matrices_shrink_and_the_error_is_the_one_that_is_told(
    folder: Path, tmp_path: Path, name: str, options: dict[str, Any], part: float, least: float
) -> None:
    path = tmp_path / "small.onnx"
    given: dict[str, Any] = {"output": path, "max_drop": {"sqnr": 10}, "seconds": 0}
    found = tp.quantize(folder / f"{name}.onnx", folder / name, **given, **options)
    assert found.bytes < part * found.float_bytes
    measured = sqnr(outputs(folder / f"{name}.onnx", folder / name), outputs(path, folder / name))
    assert measured > least
    assert found.accuracy.sqnr == pytest.approx(measured, abs=0.5)
    assert {layer.kept for layer in found.layers} == {"quantized"}
    assert "MatMulNBits" in [n.op_type for n in tp.graph.load(path).graph]


def test_the_matrices_that_hurt_most_stay_in_float(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"scheme": "int4-weights", "max_drop": {"sqnr": 21}, "seconds": 0}
    found = tp.quantize(folder / "rank3.onnx", folder / "rank3", output=tmp_path / "a.onnx", **options)
    assert found.accuracy.sqnr is not None
    assert found.accuracy.sqnr >= 21
    assert {layer.kept for layer in found.layers} == {"quantized", "float"}
    kinds = [n.op_type for n in tp.graph.load(tmp_path / "a.onnx").graph]
    assert kinds.count("MatMulNBits") == found.quantized_layers
    assert "MatMul" in kinds


@pytest.mark.parametrize("scheme", ["int8-weights", "int4-weights"])
def test_openvino_gets_the_standards_own_operators_from_nncf(folder: Path, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "a.onnx"
    options: dict[str, Any] = {"scheme": scheme, "engine": "openvino", "max_drop": {"sqnr": 10}, "seconds": 0}
    found = tp.quantize(folder / "rank3.onnx", folder / "rank3", output=path, **options)
    assert "nncf" in found.scheme
    kinds = {n.op_type for n in tp.graph.load(path).graph}
    assert "DequantizeLinear" in kinds
    assert "MatMulNBits" not in kinds
    feeds = [dict(np.load(folder / "rank3" / f"s{n}.npz")) for n in (3, 7)]
    session = tp.session(path, "openvino")
    ours = np.concatenate([next(iter(session.run(f).values())) for f in feeds])
    assert sqnr(outputs(folder / "rank3.onnx", folder / "rank3"), ours) == pytest.approx(found.accuracy.sqnr, abs=0.5)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_float16_is_half_the_size_with_the_inputs_and_outputs_it_had(folder: Path, tmp_path: Path, engine: str) -> None:
    path = tmp_path / "half.onnx"
    options: dict[str, Any] = {"scheme": "float16", "engine": engine, "max_drop": {"sqnr": 50}, "seconds": 0}
    found = tp.quantize(folder / "rank3.onnx", folder / "rank3", output=path, **options)
    assert found.bytes == pytest.approx(found.float_bytes / 2, rel=0.02)
    model = tp.graph.load(path)
    assert [v.dtype.name for v in (*model.graph.inputs, *model.graph.outputs)] == ["FLOAT", "FLOAT"]
    assert found.accuracy.sqnr is not None
    assert found.accuracy.sqnr > 50


def test_slower_weights_are_said_and_saved_since_they_are_smaller(folder: Path, tmp_path: Path) -> None:
    found = tp.quantize(
        *(folder / "rank3.onnx", folder / "rank3"),
        scheme="int4-weights",
        output=tmp_path / "a.onnx",
        max_drop="20%",
        seconds=0.1,
    )
    assert found.speed is not None
    assert (tmp_path / "a.onnx").is_file()


@pytest.mark.parametrize(
    ("scheme", "engine", "wishes", "words"),
    [
        ("bfloat16", "onnxruntime", Wishes(), "no engine here has kernels for bfloat16"),
        ("float16", "onnxruntime", Wishes(block=32), "--block means nothing to float16"),
        ("int8-weights", "onnxruntime", Wishes(method="hqq"), "--method means nothing to int8-weights"),
        ("int4-weights", "onnxruntime", Wishes(block=33), "there is no block '33'"),
        ("int4-weights", "onnxruntime", Wishes(method="gtpq"), "there is no method 'gtpq'"),
        ("int4-weights", "openvino", Wishes(method="gptq"), "only ONNX Runtime has"),
    ],
)
def test_what_does_not_go_with_a_scheme_is_a_mistake(scheme: str, engine: str, wishes: Wishes, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        schemes_for(scheme, engine, wishes)
    assert caught.value.next_step


def test_a_model_without_matrices_has_nothing_to_shrink(tmp_path: Path) -> None:
    tp.export(nn.Conv2d(1, 1, 1).eval(), (torch.randn(1, 1, 4, 4),), output=tmp_path / "conv.onnx")
    with pytest.raises(QuantizationError, match="no layer that int8-weights can quantize"):
        tp.quantize(tmp_path / "conv.onnx", scheme="int8-weights", seconds=0)
