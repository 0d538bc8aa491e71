"""How weights are laid out in the files, and that writing them takes no second copy."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from made_models import good, listed, node, proto_of, square
from onnx import numpy_helper

from torchport.errors import SaveError
from torchport.files.onnx_files import load, save, to_bytes


def test_the_data_file_is_named_by_its_content_aligned_and_holds_equal_weights_once(tmp_path: Path) -> None:
    save(ir.from_proto(good()), tmp_path / "m.onnx", external=True)
    (data,) = tmp_path.glob("*.data")
    assert data.name == f"m.{hashlib.sha256(data.read_bytes()).hexdigest()[:16]}.data"
    assert data.stat().st_size == 2 * square().nbytes  # w and tied are one, b is too small to go out
    tensors = {n: v.const_value for n, v in load(tmp_path / "m.onnx").graph.initializers.items()}
    assert tensors["w"].offset == tensors["tied"].offset
    assert all(t.offset % 64 == 0 for t in tensors.values() if isinstance(t, ir.ExternalTensor))
    assert not isinstance(tensors["b"], ir.ExternalTensor)


def test_a_large_weight_starts_on_a_page(tmp_path: Path) -> None:
    weights = {"w": square(), "k": np.arange(128 * 128, dtype=np.float32)}
    save(ir.from_proto(proto_of(node("Relu", "x"), weights=weights)), tmp_path / "m.onnx", external=True)
    assert load(tmp_path / "m.onnx").graph.initializers["k"].const_value.offset == 4096


def test_torch_and_lazy_and_strided_tensors_are_written(tmp_path: Path) -> None:
    import torch

    weights = {
        "half": ir.tensor_adapters.TorchTensor(torch.arange(4096).to(torch.bfloat16), name="half"),
        "strided": ir.tensor(np.arange(4096, dtype=np.int64).reshape(64, 64).T, name="strided"),
        "lazy": ir.LazyTensor(
            lambda: ir.tensor(square()), dtype=ir.DataType.FLOAT, shape=ir.Shape([32, 32]), name="lazy"
        ),
        "four": ir.tensor((np.arange(4095) % 8).astype(np.int8), dtype=ir.DataType.INT4, name="four"),
        "words": ir.tensor(["a", "b"], name="words"),
        "none": ir.tensor(np.zeros((0, 5), np.float32), name="none"),
    }
    for external in (True, False):
        model = ir.from_proto(proto_of(node("Relu", "x")))
        for name, tensor in weights.items():
            model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
        again = load(save(model, tmp_path / "m.onnx", external=external)).graph.initializers
        for name, tensor in weights.items():
            assert np.array_equal(again[name].const_value.numpy(), tensor.numpy()), name


def test_openvino_takes_a_file_of_two_opsets_for_an_onnx_file(tmp_path: Path) -> None:
    """It does not where the first three fields of a file are an IR version and two opsets."""
    import openvino as ov

    text = '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]> g (float[n] a) => (float[n] b) { b = Relu(a) }'
    model = ir.from_onnx_text(text)
    save(model, tmp_path / "m.onnx")
    assert ov.Core().read_model(tmp_path / "m.onnx").outputs[0].get_any_name() == "b"
    again = load(tmp_path / "m.onnx")
    assert again.opset_imports == model.opset_imports
    save(again, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_metadata_is_kept_and_does_not_grow(tmp_path: Path) -> None:
    proto = proto_of(node("Constant", value=numpy_helper.from_array(square(), "c")), weights={"b": np.ones(2)})
    for tensor in (proto.graph.initializer[0], proto.graph.node[0].attribute[0].t):
        tensor.metadata_props.add(key="from", value="here")
    for external in (True, False):
        path = tmp_path / "m.onnx"
        save(ir.from_proto(proto), path, external=external)
        save(load(path), path, external=external)
        again = onnx.load(path).graph
        assert len(again.initializer[0].metadata_props) == 1
        assert len(again.node[0].attribute[0].t.metadata_props) == 1


def test_inline_weights_beyond_protobuf_are_refused_before_they_are_written(tmp_path: Path) -> None:
    class Huge(ir.LazyTensor):
        pass

    def never() -> ir.TensorProtocol:
        raise AssertionError("read")

    model = ir.from_proto(proto_of(node("Relu", "x")))
    huge = Huge(never, dtype=ir.DataType.FLOAT, shape=ir.Shape([2**29]), name="huge")
    model.graph.register_initializer(ir.Value(name="huge", const_value=huge))
    with pytest.raises(SaveError, match="protobuf allows"):
        save(model, tmp_path / "m.onnx", external=False)
    with pytest.raises(SaveError, match="protobuf allows"):
        to_bytes(model)
    assert listed(tmp_path) == []


MEASURED = """
import sys, numpy as np, onnx_ir as ir, onnx.checker
sys.path.insert(0, {tests!r})
from made_models import model
from torchport.files.onnx_files import load, save

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024

big = model(1)
save(big, {path!r}, external=True)
for i in range(3):
    array = np.full({floats}, i, np.float32)
    big.graph.register_initializer(ir.Value(name=f"v{{i}}", const_value=ir.tensor(array, name=f"v{{i}}")))
del array
before = peak()
save(big, {path!r}, external={external})
print(peak() - before)
again = load({path!r}) if {external} else big
before = peak()
save(again, {path!r}, external={external})
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("external", [True, False])
def test_saving_takes_hardly_more_memory_than_the_weights(tmp_path: Path, external: bool) -> None:
    floats = 25_000_000 if external else 10_000_000  # three times as many: 300 MB, and 120 MB
    where = {"tests": str(Path(__file__).parents[1] / "shared"), "path": str(tmp_path / "m.onnx")}
    code = MEASURED.format(**where, external=external, floats=floats)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(int(grown) < 60 for grown in done.stdout.split()), done.stdout
