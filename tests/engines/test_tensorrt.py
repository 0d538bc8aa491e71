"""TensorRT's own package, as far as a machine without a GPU allows: FAKE stand-ins for TensorRT and for torch's CUDA.

They show that options, errors and shapes get where they should. They show nothing of TensorRT's numbers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from torchport.engines.protocol import OpenOptions
from torchport.errors import EngineError

MODEL = ir.from_onnx_text(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { [neg] y = Neg(x) }'
)


class FakeTensorRt(ModuleType):
    """FAKE: notes what it is asked for, and refuses the model if `fault` is set."""

    __version__ = "10.0.fake"
    BuilderFlag = SimpleNamespace(FP16="FP16", BF16="BF16", TF32="TF32")
    MemoryPoolType = SimpleNamespace(WORKSPACE="WORKSPACE")

    def __init__(self) -> None:
        super().__init__("tensorrt")
        self.flags: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.pools: dict[str, int] = {}
        self.fault: Any = None
        self.Logger = type("Logger", (), {"ERROR": 1, "__init__": lambda own, level: None})
        self.Builder = lambda logger: self
        self.OnnxParser = lambda network, logger: self
        self.Runtime = lambda logger: SimpleNamespace(deserialize_cuda_engine=self.plan)

    def plan(self, built: bytes) -> Any:
        context = SimpleNamespace(set_input_shape=lambda name, shape: None, set_tensor_address=lambda name, place: None)
        context.get_tensor_shape = lambda name: self.shapes[-1]
        context.execute_async_v3 = lambda stream: True
        return SimpleNamespace(create_execution_context=lambda: context)

    num_errors = 1

    def get_error(self, number: int) -> Any:
        return self.fault

    def parse(self, data: bytes) -> bool:
        return self.fault is None

    def create_network(self, flags: int) -> object:
        return object()

    def build_serialized_network(self, network: object, config: object) -> bytes:
        return b"plan"

    def create_builder_config(self) -> Any:
        return SimpleNamespace(
            clear_flag=lambda flag: self.flags.append(f"-{flag}"),
            set_flag=lambda flag: self.flags.append(f"+{flag}"),
            set_memory_pool_limit=self.pools.__setitem__,
            add_optimization_profile=lambda profile: None,
        )

    def create_optimization_profile(self) -> Any:
        return SimpleNamespace(set_shape=lambda name, least, best, most: self.shapes.append(most))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorRt]:
    module = FakeTensorRt()
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.delitem(sys.modules, "torchport.engines.tensorrt", raising=False)
    yield module
    sys.modules.pop("torchport.engines.tensorrt", None)


def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: the CPU's memory stands for the device's."""
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "FAKE GPU")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_: tensor)
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: empty(shape, dtype=dtype))


def engine() -> Any:
    return importlib.import_module("torchport.engines.tensorrt").TensorRt()


def test_without_a_gpu_it_says_so(fake: FakeTensorRt) -> None:
    with pytest.raises(EngineError, match="TensorRT needs an NVIDIA GPU"):
        engine().open(MODEL, OpenOptions())


def test_a_node_that_it_refuses_is_named(fake: FakeTensorRt, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch)
    fake.fault = SimpleNamespace(desc=lambda: "no importer for Neg", node_name=lambda: "neg")
    with pytest.raises(EngineError, match="no importer for Neg") as caught:
        engine().open(MODEL, OpenOptions())
    assert caught.value.node == "neg"


def test_options_reach_the_builder_and_a_plan_is_kept_for_each_shape(
    fake: FakeTensorRt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch)
    runner = engine().open(MODEL, OpenOptions(settings={"precision": "fp16", "workspace": 256}))
    for size in (2, 3, 2):
        [y] = runner.run({"x": np.zeros(size, np.float32)})
        assert y.dtype == np.float32
    assert fake.shapes == [(2,), (3,)]
    assert fake.flags == ["-TF32", "+FP16"] * 2
    assert fake.pools == {"WORKSPACE": 256 << 20}


def test_full_precision_is_the_default(fake: FakeTensorRt, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpu(monkeypatch)
    engine().open(MODEL, OpenOptions()).run({"x": np.zeros(1, np.float32)})
    assert fake.flags == ["-TF32"]
