"""A session takes torch or numpy, by position or by name, and says kindly what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import torchport as tp
from torchport.engines.registry import find_engine
from torchport.errors import EngineError, EngineMissingError, FileError, InputError


@pytest.fixture(scope="module")
def session(onnx_file: Path) -> tp.Session:
    return tp.session(onnx_file)


X = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8) / 100


def test_inputs_and_outputs_are_described(session: tp.Session) -> None:
    assert [str(i) for i in session.inputs] == ["x: float32[batch,3,height,width]"]
    assert [(o.name, o.dtype, o.shape) for o in session.outputs] == [
        ("logits", "float32", ("batch", 5)),
        ("pooled", "float32", ("batch", 8)),
    ]


def test_torch_in_torch_out_by_position(session: tp.Session, small_net: torch.nn.Module) -> None:
    logits, pooled = session(X)
    want = small_net(X)
    torch.testing.assert_close(logits, want["logits"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled, want["pooled"], rtol=1e-4, atol=1e-5)


def test_numpy_in_numpy_out_by_name(session: tp.Session) -> None:
    answer = session.run({"x": X.numpy()})
    assert list(answer) == ["logits", "pooled"]
    assert isinstance(answer["logits"], np.ndarray)


def test_a_model_in_memory_answers_as_its_file(session: tp.Session, exported: tp.Exported) -> None:
    in_memory = tp.session(exported.model)
    assert in_memory.inputs == session.inputs
    np.testing.assert_allclose(in_memory(X.numpy())[0], session(X.numpy())[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["openvino", "reference"])
def test_other_engines_answer_alike(engine: str, exported: tp.Exported, session: tp.Session) -> None:
    other = tp.session(exported.model, engine=engine)
    np.testing.assert_allclose(other(X.numpy())[0], session(X.numpy())[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": X, "y": X}, "there is no input 'y'"),
        ({"x": X.double()}, "input 'x' is float64, the model takes float32"),
        ({"x": X[0]}, "input 'x' has rank 3, the model takes 4"),
        ({"x": X[:, :2]}, "has size 2 at axis 1, the model is fixed to 3"),
    ],
)
def test_what_does_not_fit_is_said(session: tp.Session, feeds: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InputError) as caught:
        session.run(feeds)
    assert message in str(caught.value)


def test_the_number_of_positional_inputs_is_checked(session: tp.Session) -> None:
    with pytest.raises(InputError, match="2 inputs given, the model has 1"):
        session(X, X)


def test_one_dim_name_has_one_size() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }'
    )
    with pytest.raises(InputError, match="dimension 'n' has two sizes: 2 and 1"):
        tp.session(model)(np.zeros(2, np.float32), np.zeros(1, np.float32))


def test_python_numbers_are_taken_as_the_models_dtype() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] a, float b) => (float[n] c) { c = Mul(a, b) }'
    )
    assert tp.session(model)(np.ones(2, np.float32), 2.5).tolist() == [2.5, 2.5]


def test_bfloat16_goes_in_and_out() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (bfloat16[n] a) => (bfloat16[n] b) { b = Identity(a) }'
    )
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert torch.equal(tp.session(model)(x), x)


def test_a_failure_inside_names_the_node() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] a) => (float[m] b)'
        " { s = Constant <value_ints = [7]> () [node_r] b = Reshape(a, s) }"
    )
    with pytest.raises(EngineError) as caught:
        tp.session(model)(np.zeros(3, np.float32))
    assert "node_r" in str(caught.value)


def test_an_unknown_operator_is_refused_by_name() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]> g (float[n] a) => (float[n] b) { b = mine.Foo(a) }'
    )
    with pytest.raises(EngineError, match="Foo"):
        tp.session(model)


def test_a_missing_engine_lists_those_there(onnx_file: Path) -> None:
    with pytest.raises(EngineMissingError, match="onnxruntime, openvino, reference"):
        tp.session(onnx_file, engine="warp")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        tp.session(tmp_path / "none.onnx")


def test_a_loaded_model_runs_whose_small_weights_lie_in_a_data_file(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
      a = Add(x, w)
      y = If (c) <then_branch = t () => (float[2] u) <float[2] v = {3, 4}> { u = Mul(a, v) },
                  else_branch = e () => (float[2] z) { z = Neg(a) }>
    }"""
    proto = onnx.parser.parse_model(text)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    session = tp.session(tp.graph.load(tmp_path / "m.onnx"))
    assert session.run({"x": np.float32([1, 1]), "c": np.array(True)})["y"].tolist() == [6, 12]


def test_a_file_of_the_ir_version_that_onnx_writes_today_runs(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n] a) => (float[n] b) { b = Abs(a) }'
    )
    proto.ir_version = onnx.IR_VERSION
    onnx.save(proto, tmp_path / "new.onnx")
    for model in (tmp_path / "new.onnx", tp.graph.load(tmp_path / "new.onnx")):
        assert tp.session(model)(np.float32([-2, 1])).tolist() == [2, 1]
    assert tp.graph.load(tmp_path / "new.onnx").ir_version == onnx.IR_VERSION


def test_an_ir_version_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    model = ir.from_onnx_text('<ir_version: 99, opset_import: ["" : 20]> g (float[n] a) => (float[n] b) { b = Abs(a) }')
    with pytest.raises(EngineError, match="IR version"):
        tp.session(model)


def test_an_opset_that_is_too_new_is_said_with_the_newest_that_is_read() -> None:
    opsets = find_engine("onnxruntime").capabilities().opsets
    assert opsets is not None
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : {opsets[1] + 1}]> g (float[n] a) => (float[n] b) {{ b = Abs(a) }}'
    )
    with pytest.raises(EngineError, match=f"reads opsets up to {opsets[1]}") as caught:
        tp.session(model)
    assert f"--set-opset {opsets[1]}" in str(caught.value)
