"""Models to save and files to open, made by hand, and ways to look at and to break what comes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from torchport.files.onnx_files import load

FLOAT = TensorProto.FLOAT


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, [32, 32])


def proto_of(*nodes: onnx.NodeProto, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", [value("x")], [value("y")], tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(op: str, *inputs: str, to: str = "y", **rest: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [to], name=op.lower(), **rest)


def square(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((32, 32), np.float32)


def good() -> onnx.ModelProto:
    weights = {"w": square(), "tied": square(), "b": np.float32([2.0]), "k": square(1)}
    steps = [
        node("MatMul", "x", "w", to="a"),
        node("Add", "a", "tied", to="c"),
        node("Mul", "c", "b", to="d"),
        node("Add", "d", "k"),
    ]
    return proto_of(*steps, weights=weights)


def written(content: onnx.ModelProto | bytes, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return path


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def model(number: float, size: int = 2048) -> ir.Model:
    weight = numpy_helper.from_array(np.full(size, number, np.float32), "w")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weight])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def number_in(path: Path) -> float:
    """The number the model at `path` is full of; fails if it is not whole."""
    values = np.unique(load(path).graph.initializers["w"].const_value.numpy())
    assert len(values) == 1
    return float(values[0])


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, count: int, error: BaseException) -> None:
    real = getattr(os, name)
    calls = iter(range(1, 1000))

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == count:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, faulty)
