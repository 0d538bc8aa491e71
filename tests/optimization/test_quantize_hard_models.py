"""Models that are hard to quantize: operators of their own, functions, old opsets, weights in data files, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import torchport as tp
from torchport.engines.onnxruntime import kernel_libraries
from torchport.errors import OptionError, QuantizationError, TorchportError
from torchport.operators import definition
from torchport.optimization import preparation

KERNELS = Path(__file__).parent.parent / "operators" / "kernels" / "everything.cc"


def matrices(path: Path, *, opset: int = 17, size: int = 32, extra: tuple[onnx.NodeProto, ...] = ()) -> Path:
    """Save MatMul, Relu, MatMul; the nodes in `extra` make y of h."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(size, size)).astype(np.float32), n) for n in ("v", "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["h" if extra else "y"]),
        *extra,
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, size]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("tests", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_an_operator_of_ones_own_stays_as_it_is_and_runs_by_its_library(tmp_path: Path) -> None:
    @tp.operator("tests::scale_add")
    def scale_add(a: Tensor, b: Tensor, alpha: float = 3.0) -> Tensor:
        return a * alpha + b

    scale_add.onnx("tests::ScaleAdd")
    scale_add.kernel(KERNELS)
    net = nn.Linear(32, 32).eval()
    path = tmp_path / "own.onnx"
    tp.export(lambda x: scale_add(net(x), x), (torch.randn(4, 32),), output=path)
    definition.forget("tests::scale_add")
    library = kernel_libraries.build([KERNELS])
    with pytest.raises(TorchportError, match="tests::ScaleAdd"):
        tp.quantize(path, seconds=0)
    found = tp.quantize(path, output=tmp_path / "int8.onnx", libraries=[library], seconds=0)
    kinds = [n.op_type for n in tp.graph.load(tmp_path / "int8.onnx").graph]
    assert "ScaleAdd" in kinds
    assert "QuantizeLinear" in kinds
    assert "ScaleAdd" not in [layer.operator for layer in found.layers if layer.kept == "quantized"]


def test_functions_of_the_model_are_written_out(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4,32] x, float[32,32] w) => (float[4,32] y) { y = local.Twice(x, w) }
        <domain: "local", opset_import: ["" : 17]> Twice (a, b) => (d) { c = MatMul(a, b) d = MatMul(c, b) }"""
    model = ir.from_onnx_text(text)
    weight = ir.tensor(np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32), name="w")
    given = model.graph.inputs.pop()
    given.const_value = weight
    model.graph.register_initializer(given)
    tp.graph.save(model, tmp_path / "functions.onnx")
    found = tp.quantize(tmp_path / "functions.onnx", output=tmp_path / "int8.onnx", seconds=0)
    assert [layer.operator for layer in found.layers] == ["MatMul", "MatMul"]
    assert found.quantized_layers == 2


def test_an_old_opset_is_carried_to_one_with_a_scale_for_each_channel(tmp_path: Path) -> None:
    path = matrices(tmp_path / "old.onnx", opset=9)
    found = tp.quantize(path, output=tmp_path / "int8.onnx", seconds=0)
    model = tp.graph.load(tmp_path / "int8.onnx")
    assert model.opset_imports[""] >= 13
    assert found.quantized_layers == 2


def test_weights_in_a_data_file_are_read_from_there(tmp_path: Path) -> None:
    model = tp.graph.load(matrices(tmp_path / "inside.onnx", size=256))
    (tmp_path / "outside").mkdir()
    tp.graph.save(model, tmp_path / "outside" / "model.onnx", external=True)
    found = tp.quantize(tmp_path / "outside" / "model.onnx", output=tmp_path / "int8.onnx", seconds=0)
    assert found.bytes < 0.3 * found.float_bytes


def test_a_model_larger_than_memory_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "memory", lambda: 10_000)
    with pytest.raises(OptionError, match="the weights take 8 KiB; a quantizer holds them 4 times over"):
        tp.quantize(matrices(tmp_path / "m.onnx"), seconds=0)


def test_a_quantizer_that_needs_more_memory_than_it_may_take_is_ended(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="failed to quantize"):
        tp.quantize(matrices(tmp_path / "m.onnx"), seconds=0, memory=60 << 20)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a process")
def test_ctrl_c_writes_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    path = matrices(tmp_path / "m.onnx", size=256)
    code = "from torchport.cli.main import main; main()"
    command = [sys.executable, "-c", code, "quantize", str(path), "-o", str(tmp_path / "int8.onnx"), "--seconds", "60"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("measuring"):
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in errors
    left = [p.name for p in tmp_path.iterdir() if p.name != ".ses"]  # ONNX Runtime's
    assert left == ["m.onnx"]
