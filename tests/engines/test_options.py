"""An engine's options are checked before the engine sees them; a provider never gives way to the CPU in silence."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

import torchport as tp
from torchport.engines.onnxruntime import session_options
from torchport.engines.options import open_options
from torchport.errors import EngineError, InputError, OptionError

MODEL = ir.from_onnx_text(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y, float[n,4] z)'
    " { [first] y = Relu(x) [second] z = Exp(y) }"
)
X = np.float32([[-1, 0, 1, 2]])


def test_a_model_runs_with_threads_and_options() -> None:
    options = {"graph_optimization": "basic", "spinning": False, "inter_op_threads": "2", "providers": "cpu"}
    session = tp.session(MODEL, threads=1, options=options)
    np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))
    assert session.findings == ()


def test_threads_and_optimization_reach_onnx_runtime() -> None:
    options = open_options("onnxruntime", threads=2, settings={"graph_optimization": "DISABLED"})
    made = session_options.session_options(options)
    assert made.intra_op_num_threads == 2
    assert made.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_options_are_plain_data_that_another_process_can_take() -> None:
    options = open_options("onnxruntime", threads=1, settings={"providers": "cpu", "spinning": "off"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.settings == {"providers": ("cpu",), "spinning": False}


@pytest.mark.parametrize("threads", [0, -1, 10**6, True])
def test_a_thread_count_that_cannot_be_meant_is_refused(threads: int) -> None:
    with pytest.raises(OptionError, match="this machine has"):
        tp.session(MODEL, threads=threads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph_optimisation": "all"}, "did you mean graph_optimization?"),
        ({"graph_optimization": "al"}, "did you mean 'all'?"),
        ({"graph_optimization": 3}, "is one of disabled, basic, extended, layout, all, not 3"),
        ({"inter_op_threads": 0}, "is a number from 1 to 64, not 0"),
        ({"inter_op_threads": "many"}, "is a number from 1 to 64, not 'many'"),
        ({"inter_op_threads": 1.5}, "not 1.5"),
        ({"spinning": "perhaps"}, "is true or false, not 'perhaps'"),
        ({"providers": "cuta"}, "did you mean cuda"),
        ({"providers": ["warp"]}, "ONNX Runtime has no execution provider 'warp'"),
        ({"providers": "tensorrt,cpu"}, "TensorrtExecutionProvider is not in this ONNX Runtime"),
        ({"azure.key": "1"}, "ask for it: --option providers=azure,cpu"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        tp.session(MODEL, options=options)
    assert message in str(caught.value)


def test_an_engine_without_options_says_so() -> None:
    with pytest.raises(OptionError, match="it has none"):
        tp.session(MODEL, "reference", options={"streams": 1})
    with pytest.raises(OptionError, match="no threads to set"):
        tp.session(MODEL, "reference", threads=1)


def test_a_provider_that_takes_no_node_is_an_error_that_names_the_nodes() -> None:
    with pytest.raises(EngineError) as caught:
        tp.session(MODEL, options={"providers": "azure"})
    assert caught.value.what == "the execution provider AzureExecutionProvider takes none of the model's nodes"
    assert caught.value.where == "the CPU would run 'first' (Relu), 'second' (Exp)"


def test_a_provider_that_onnx_runtime_leaves_out_is_an_error() -> None:
    with pytest.raises(EngineError, match="CUDAExecutionProvider is not active"):
        session_options.check_active(["CUDAExecutionProvider", session_options.CPU], [session_options.CPU])


class FakeSession:
    """FAKE: stands for a session with a GPU, which this machine has not. It takes the first node of two."""

    def get_provider_graph_assignment_info(self) -> list[Any]:
        def part(provider: str, name: str, op_type: str) -> Any:
            return SimpleNamespace(ep_name=provider, get_nodes=lambda: [SimpleNamespace(name=name, op_type=op_type)])

        return [part("TensorrtExecutionProvider", "first", "Relu"), part(session_options.CPU, "second", "Exp")]


def test_nodes_that_a_provider_leaves_to_the_cpu_are_a_finding() -> None:
    found = session_options.fallbacks(FakeSession(), ["TensorrtExecutionProvider", session_options.CPU])
    assert [str(f) for f in found] == [
        "the CPU runs 1 of 2 nodes that TensorrtExecutionProvider does not take: 'second' (Exp)"
    ]


def test_the_options_of_providers_go_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: ONNX Runtime is made to say that it has TensorRT."""
    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", session_options.CPU]
    monkeypatch.setattr(ort, "get_available_providers", lambda: names)
    settings = {
        "providers": "tensorrt,cuda",
        "tensorrt.trt_fp16_enable": True,
        "tensorrt.trt_engine_cache_path": Path("cache"),
        "cuda.device_id": 1,
    }
    options = open_options("onnxruntime", settings=settings)
    assert session_options.asked_providers(options.settings) == [
        ("TensorrtExecutionProvider", {"trt_fp16_enable": "True", "trt_engine_cache_path": "cache"}),
        ("CUDAExecutionProvider", {"device_id": "1"}),
        (session_options.CPU, {}),
    ]


# Outputs in the caller's memory


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "reference"])
def test_outputs_are_written_into_the_callers_memory(engine: str, onnx_file: Path) -> None:
    session = tp.session(onnx_file, engine)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    want = session.run({"x": x})
    logits, pooled = np.empty((2, 5), np.float32), torch.empty(2, 8)
    given = session.run({"x": x}, out={"logits": logits, "pooled": pooled})
    assert given["logits"] is logits
    assert given["pooled"] is pooled
    np.testing.assert_array_equal(logits, want["logits"])
    np.testing.assert_array_equal(pooled.numpy(), want["pooled"])
    other = session.run({"x": x}, out={"pooled": pooled}, only=["pooled"])
    assert list(other) == ["pooled"]


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "reference"])
@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (lambda: {"q": np.empty((1, 4), np.float32)}, "there is no output 'q'"),
        (lambda: {"y": np.empty((1, 4))}, "is float64, the output float32"),
        (lambda: {"y": np.empty((1, 8), np.float32)[:, ::2]}, "is not contiguous"),
        (lambda: {"y": np.empty((1, 3), np.float32)}, "has the shape [1,3], the output [n,4]"),
        (lambda: {"y": np.empty((2, 4), np.float32)}, "has the shape [2,4], the output [1,4]"),
        (lambda: {"y": [0.0]}, "is a list"),
    ],
)
def test_a_buffer_that_does_not_fit_is_named(engine: str, buffer: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        tp.session(MODEL, engine).run({"x": X}, out=buffer())
    assert message in str(caught.value)
