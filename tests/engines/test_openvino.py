"""OpenVINO gives a model's answers in full precision, under the model's own names, or says at which node it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import openvino as ov
import pytest
import torch

import torchport as tp
from torchport.engines.openvino import OpenVino, _properties
from torchport.engines.options import open_options
from torchport.errors import EngineError, OptionError


def model_of(body: str, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : {opset}, "mine" : 1]> g {body}')


MATMUL = model_of("(float[n,256] x, float[256,256] w) => (float[n,256] y) { y = MatMul(x, w) }")


def test_floats_are_computed_in_full_precision_unless_asked(onnx_file: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 256), (256, 256)))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    full = tp.session(MATMUL, "openvino")(x, w)
    assert np.abs(full - exact).max() < 1e-4
    if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        coarse = tp.session(MATMUL, "openvino", options={"precision": "bf16"})(x, w)
        assert np.abs(coarse - exact).max() > 1e-2


def test_options_reach_openvino(tmp_path: Path) -> None:
    settings = {"hint": "throughput", "streams": 2, "cache": tmp_path, "profile": True}
    runner = OpenVino().open(MATMUL, open_options("openvino", threads=2, settings=settings))
    compiled = runner.compiled
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 2
    assert compiled.get_property("NUM_STREAMS") == 2
    assert str(compiled.get_property("PERFORMANCE_HINT")).endswith("THROUGHPUT")
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32
    assert list(tmp_path.iterdir())  # the compiled model is kept


def test_openvino_chooses_the_precision_where_it_is_left_to_it() -> None:
    assert _properties(open_options("openvino", settings={"precision": "auto"})) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "GPU"}, "OpenVINO has no device 'GPU' here"),
        ({"device": "CPV"}, "did you mean CPU?"),
        ({"precision": "fp32"}, "did you mean 'f32'?"),
        ({"streams": 0}, "is one of auto or a number from 1 to 1024, not 0"),
        ({"precison": "f32"}, "did you mean precision?"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        tp.session(MATMUL, "openvino", options=options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("double", np.float64),
        ("bool", np.bool_),
        ("int64", np.int64),
        ("uint8", np.uint8),
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
    ],
)
def test_every_dtype_goes_in_and_out(name: str, kind: Any) -> None:
    session = tp.session(model_of(f"({name}[n] a) => ({name}[n] b) {{ b = Identity(a) }}", 21), "openvino")
    x = np.array([1, 0, 1]).astype(kind)
    y = session(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_arrays_that_are_read_only_empty_or_strided_are_taken() -> None:
    session = tp.session(model_of("(float[n,m] a) => (float[n,m] b) { b = Neg(a) }"), "openvino")
    frozen = np.ones((2, 3), np.float32)
    frozen.flags.writeable = False
    for x in (frozen, np.ones((0, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3).T):
        np.testing.assert_array_equal(session(x), -x)


def test_an_output_stays_as_it_was_when_the_session_runs_again() -> None:
    session = tp.session(model_of("(float[n] a) => (float[n] b) { b = Neg(a) }"), "openvino")
    buffer = np.empty(2, np.float32)
    session.run({"a": np.float32([5, 6])}, out={"b": buffer})
    first = session(np.float32([1, 2]))
    session(np.float32([3, 4]))
    assert first.tolist() == [-1, -2]
    assert buffer.tolist() == [-5, -6]


def test_an_input_that_nothing_reads_is_still_taken() -> None:
    session = tp.session(model_of("(float[n] a, float[k] unread) => (float[n] b) { b = Neg(a) }"), "openvino")
    assert [i.name for i in session.inputs] == ["a", "unread"]
    assert session(np.float32([1]), np.float32([2])).tolist() == [-1]


def test_an_output_without_a_dtype_gets_openvinos() -> None:
    """As a tensor inside that is made an output: numpy takes '?' for bool."""
    model = model_of("(float[n] a) => (b) { b = Cast<to = 7>(a) }")
    assert model.graph.outputs[0].dtype is None
    assert tp.session(model, "openvino")(np.float32([3])).dtype == np.int64


def test_bodies_of_functions_are_run() -> None:
    body = '(float[n] a) => (float[n] b) { b = mine.Twice(a) } <domain: "mine", opset_import: ["" : 17]> '
    session = tp.session(model_of(body + "Twice (x) => (y) { y = Add(x, x) }"), "openvino")
    assert session(np.float32([3])).tolist() == [6]


def test_outputs_wanted_come_in_the_order_asked_for() -> None:
    session = tp.session(model_of("(float[n] a) => (float[n] b, float[n] c) { b = Neg(a) c = Abs(a) }"), "openvino")
    assert list(session.run({"a": np.float32([-1])}, only=["c", "b"]).items()) == [("c", [1]), ("b", [1])]


@pytest.mark.parametrize(
    ("body", "node", "message"),
    [
        ("(float[n] a) => (float[n] b) { [foo] b = mine.Foo(a) }", "foo", "nothing here runs the operator mine::Foo"),
        ("(float[n] a) => (seq(float[n]) b) { [seq] b = SequenceConstruct(a) }", "seq", "SequenceConstruct"),
        (
            "(float[n,3] a) => (float[k,1] b) <float[4,1] w = {1,2,3,4}> { [mm] b = MatMul(a, w) }",
            "mm",
            "MatMul",
        ),
        ("(float[n] a) => (float[n] b) { [opt] o = Optional(a) b = OptionalGetElement(o) }", "opt", "Optional with"),
        ("(string[n] a) => (string[n] b) { b = Identity(a) }", "", "'a' holds strings"),
    ],
)
def test_a_model_that_it_refuses_is_named_with_the_node(body: str, node: str, message: str) -> None:
    with pytest.raises(EngineError) as caught:
        tp.session(model_of(body), "openvino")
    assert caught.value.node == node
    assert message in caught.value.what


def test_a_failure_inside_names_the_node() -> None:
    body = "(float[n] a) => (float[m] b) { s = Constant <value_ints = [7]> () [node_r] b = Reshape(a, s) }"
    with pytest.raises(EngineError, match="reshape pattern") as caught:
        tp.session(model_of(body), "openvino")(np.zeros(3, np.float32))
    assert caught.value.node == "node_r"


def test_a_number_beyond_int32_is_refused_instead_of_computed_wrong() -> None:
    session = tp.session(model_of("(int64[n] a) => (int64[n] b) { b = Add(a, a) }"), "openvino")
    assert session(np.array([2, -3])).tolist() == [4, -6]
    with pytest.raises(EngineError, match="input 'a' has the number 1099511627776; OpenVINO computes int64 as int32"):
        session(np.array([1 << 40]))


def test_float64_is_said_to_be_computed_as_float32() -> None:
    session = tp.session(model_of("(double[n] a) => (double[n] b) { b = Exp(a) }"), "openvino")
    assert "float64 as float32" in str(session.findings[0])


def test_an_export_is_proven_in_openvino(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x))

    exported = tp.export(Net(), (torch.randn(2, 4),), dynamic={"x": {0: "batch"}}, target="openvino")
    assert exported.proof.passed
    assert exported.proof.engine == "openvino"
