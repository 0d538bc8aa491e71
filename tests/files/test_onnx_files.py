"""What comes back after saving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from made_models import good, listed, node, proto_of, square, value
from onnx import TensorProto, helper, numpy_helper

from torchport.errors import SaveError
from torchport.files import onnx_files
from torchport.files.onnx_files import load, save, to_bytes, weight_bytes


@pytest.mark.parametrize("external", [None, False, True])
def test_saving_twice_gives_the_same_bytes_and_no_more_files(tmp_path: Path, external: bool | None) -> None:
    path = tmp_path / "m.onnx"
    assert save(ir.from_proto(good()), path, external=external) == path
    before = {name: (tmp_path / name).read_bytes() for name in listed(tmp_path)}
    save(load(path), path, external=external)
    save(ir.from_proto(good()), path, external=external)
    assert {name: (tmp_path / name).read_bytes() for name in listed(tmp_path)} == before
    assert len(before) == (2 if external else 1)


@pytest.mark.parametrize("external", [False, True])
def test_what_was_saved_means_the_same_to_onnx(tmp_path: Path, external: bool) -> None:
    proto = good()
    save(ir.from_proto(proto), tmp_path / "m.onnx", external=external)
    again = onnx.load(tmp_path / "m.onnx")
    assert [i.name for i in again.graph.initializer] == [i.name for i in proto.graph.initializer]
    for ours, theirs in zip(again.graph.initializer, proto.graph.initializer, strict=True):
        assert np.array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs))
    assert list(again.graph.node) == list(proto.graph.node)


def test_weights_in_subgraphs_go_out_too_and_an_engine_reads_them(tmp_path: Path) -> None:
    import onnxruntime

    then = helper.make_graph([node("Add", "x", "w", to="t")], "t", [], [value("t")])
    then.initializer.append(numpy_helper.from_array(square(), "w"))
    other = helper.make_graph([node("Identity", "x", to="e")], "e", [], [value("e")])
    proto = proto_of(node("If", "c", then_branch=then, else_branch=other))
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    path = save(ir.from_proto(proto), tmp_path / "m.onnx", external=True)
    assert len(list(tmp_path.glob("*.data"))) == 1
    session = onnxruntime.InferenceSession(path)
    (answer,) = session.run(None, {"x": square(1), "c": np.array(True)})
    assert np.array_equal(answer, square() + square(1))


def test_an_edit_in_place_replaces_the_data_file_and_the_old_weights_stay_readable(tmp_path: Path) -> None:
    path = save(ir.from_proto(good()), tmp_path / "m.onnx", external=True)
    model = load(path)
    before = {name: v.const_value for name, v in model.graph.initializers.items()}
    model.graph.initializers["k"].const_value = ir.tensor(square(7), name="k")
    save(model, path, external=True)
    assert len(list(tmp_path.glob("*.data"))) == 1
    assert model.graph.initializers["w"].const_value is before["w"]
    assert np.array_equal(before["w"].numpy(), square())
    assert np.array_equal(load(path).graph.initializers["k"].const_value.numpy(), square(7))
    save(model, path, external=True)  # now from mappings of a file that is gone
    save(model, path, external=False)
    assert listed(tmp_path) == ["m.onnx"]
    assert np.array_equal(load(path).graph.initializers["w"].const_value.numpy(), square())


def test_a_data_file_that_a_copy_needs_or_that_is_not_ours_is_left(tmp_path: Path) -> None:
    path = save(ir.from_proto(good()), tmp_path / "m.onnx", external=True)
    (tmp_path / "copy.onnx").write_bytes(path.read_bytes())
    save(ir.from_proto(good()), path)
    assert load(tmp_path / "copy.onnx").graph.initializers["w"].const_value.numpy().shape == (32, 32)
    onnx.save(good(), tmp_path / "n.onnx", save_as_external_data=True, location="n.onnx.data", size_threshold=0)
    save(load(tmp_path / "n.onnx"), tmp_path / "n.onnx")
    assert (tmp_path / "n.onnx.data").exists()


def test_the_callers_model_is_not_changed(tmp_path: Path) -> None:
    model = ir.from_proto(good())
    tensors = {n: v.const_value for n, v in model.graph.initializers.items()}
    before = ir.to_proto(model)
    for external in (True, False):
        save(model, tmp_path / "m.onnx", external=external)
    assert all(model.graph.initializers[n].const_value is t for n, t in tensors.items())
    assert ir.to_proto(model) == before


def test_bytes_are_the_same_each_time_and_are_the_file(tmp_path: Path) -> None:
    path = save(ir.from_proto(good()), tmp_path / "m.onnx")
    assert to_bytes(load(path)) == to_bytes(ir.from_proto(good())) == path.read_bytes()
    outside = save(ir.from_proto(good()), tmp_path / "out.onnx", external=True)
    assert to_bytes(load(outside)) == path.read_bytes()


def test_weights_are_counted_without_being_read(tmp_path: Path) -> None:
    model = load(save(ir.from_proto(good()), tmp_path / "m.onnx", external=True))
    (tmp_path / next(tmp_path.glob("*.data"))).unlink()
    assert weight_bytes(model) == 3 * square().nbytes + 4


def test_weights_beyond_the_limit_go_out_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_files, "INLINE_LIMIT", 4096)
    save(ir.from_proto(good()), tmp_path / "m.onnx")
    assert len(list(tmp_path.glob("*.data"))) == 1


def test_an_invalid_model_is_refused_in_the_checkers_words(tmp_path: Path) -> None:
    model = ir.from_proto(proto_of(node("NoSuchOperator", "x")))
    with pytest.raises(SaveError, match="No Op registered for NoSuchOperator") as caught:
        save(model, tmp_path / "m.onnx")
    assert caught.value.where == str(tmp_path / "m.onnx")
    assert listed(tmp_path) == []
    save(model, tmp_path / "m.onnx", check=False)


def test_a_custom_operator_passes_the_checker(tmp_path: Path) -> None:
    save(ir.from_proto(proto_of(node("Mine", "x", domain="mine"))), tmp_path / "m.onnx")


def test_a_model_that_cannot_be_serialized_is_a_save_error(tmp_path: Path) -> None:
    model = ir.from_proto(proto_of(node("Relu", "x")))
    model.graph[0].attributes["bad"] = ir.Attr("bad", ir.AttributeType.SPARSE_TENSOR, None)
    with pytest.raises(SaveError, match="cannot be written as ONNX"):
        save(model, tmp_path / "m.onnx")
    assert listed(tmp_path) == []


def test_importing_the_room_is_cheap() -> None:
    code = "import sys, torchport.graph; sys.exit(any(m in sys.modules for m in ('onnx', 'onnx_ir', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
