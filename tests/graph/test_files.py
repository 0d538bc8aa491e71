"""Opening broken files, and what comes back after saving."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from torchport.errors import FileError, SaveError, UnsafeFileError
from torchport.graph import files
from torchport.graph.files import load, save, to_bytes, weight_bytes

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


# Files that are no models


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x")


NO_MODELS: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "html": lambda p: p.write_text("<!DOCTYPE html><html>404</html>"),
    "html after blank lines": lambda p: p.write_text("\n\n <html>404</html>"),
    "pickle": lambda p: p.write_bytes(pickle.dumps({"a": 1})),
    "zip": _zip,
    "git lfs": lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n"),
    "json": lambda p: p.write_text('{"irVersion": "10"}'),
    "text": lambda p: p.write_text("ir_version: 10\n"),
    "noise": lambda p: p.write_bytes(np.random.default_rng(0).bytes(4096)),
    "zeros": lambda p: p.write_bytes(bytes(4096)),
    "folder": lambda p: p.mkdir(),
    "pipe": lambda p: os.mkfifo(p),
    "missing": lambda p: None,
    "dangling link": lambda p: p.symlink_to("nowhere"),
    "no graph": lambda p: p.write_bytes(b"\x08\x0a\x42\x02\x10\x14"),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_what_is_no_model_is_said_to_be_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.onnx"
    NO_MODELS[kind](path)
    with pytest.raises(FileError) as caught:
        load(path)
    assert caught.value.where == str(path)
    assert caught.value.next_step


@pytest.mark.parametrize("path", ["", "no/such/m.onnx", "a\0b.onnx", "a" * 300, "/dev/null"])
def test_a_path_that_cannot_be_opened_is_a_file_error(path: str) -> None:
    with pytest.raises(FileError):
        load(path)


def test_a_file_too_large_for_protobuf_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # a hole: takes no space
    with pytest.raises(FileError, match="protobuf allows"):
        load(path)


def test_a_file_cut_at_any_length_never_opens_as_another_model(tmp_path: Path) -> None:
    save(ir.from_proto(good()), tmp_path / "m.onnx")
    content = (tmp_path / "m.onnx").read_bytes()
    ends = {*range(200), *range(200, len(content), 197), *range(len(content) - 40, len(content))}
    for end in sorted(ends):
        with pytest.raises(FileError):
            load(written(content[:end], tmp_path))


def test_a_flipped_bit_gives_a_model_or_a_typed_error(tmp_path: Path) -> None:
    content = proto_of(node("Relu", "x"), weights={"w": np.zeros(2, np.float32)}).SerializeToString()
    for position in range(len(content)):
        for bit in (0, 3, 7):
            spoiled = bytearray(content)
            spoiled[position] ^= 1 << bit
            try:
                load(written(bytes(spoiled), tmp_path))
            except FileError:
                continue


# Models that make no sense


def _changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = good()
    change(proto)
    return proto


def _functions(**calls: list[str]) -> onnx.ModelProto:
    proto = proto_of(node(next(iter(calls)), "x", domain="mine"))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    for name, called in calls.items():
        body = [node(c, "i", to=f"v{n}", domain="mine") for n, c in enumerate(called)]
        body.append(node("Identity", "i", to="o"))
        proto.functions.append(helper.make_function("mine", name, ["i"], ["o"], body, opsets))
    return proto


def _function_within_if() -> onnx.ModelProto:
    proto = _functions(F=[])
    inner = helper.make_graph([node("F", "i", to="z", domain="mine")], "b", [], [value("z")])
    conditional = node("If", "i", to="u", then_branch=inner, else_branch=inner)
    proto.functions[0].node.insert(0, conditional)
    return proto


def _loop_through_subgraph() -> onnx.ModelProto:
    inner = helper.make_graph([node("Identity", "y", to="z")], "b", [], [value("z")])
    return proto_of(node("If", "x", then_branch=inner, else_branch=inner))


def _outer_value_as_output() -> onnx.ModelProto:
    inner = helper.make_graph([node("Identity", "x", to="z")], "b", [], [value("x")])
    return proto_of(node("If", "x", then_branch=inner, else_branch=inner))


NONSENSE: dict[str, Callable[[], onnx.ModelProto]] = {
    "no opset": lambda: _changed(lambda p: p.ClearField("opset_import")),
    "no IR version": lambda: _changed(lambda p: p.ClearField("ir_version")),
    "newer IR": lambda: _changed(lambda p: setattr(p, "ir_version", onnx.IR_VERSION + 1)),
    "negative IR": lambda: _changed(lambda p: setattr(p, "ir_version", -3)),
    "newer opset": lambda: _changed(lambda p: setattr(p.opset_import[0], "version", 999)),
    "newer ml opset": lambda: _changed(lambda p: p.opset_import.add(domain="ai.onnx.ml", version=999)),
    "opset 0": lambda: _changed(lambda p: setattr(p.opset_import[0], "version", 0)),
    "two opsets": lambda: _changed(lambda p: p.opset_import.add(domain="ai.onnx", version=11)),
    "domain not imported": lambda: proto_of(node("Mine", "x", domain="other")),
    "no operator": lambda: proto_of(node("", "x")),
    "undefined input": lambda: proto_of(node("Add", "x", "nothing")),
    "undefined output": lambda: proto_of(node("Relu", "x", to="z")),
    "made twice": lambda: proto_of(node("Relu", "x"), node("Abs", "x")),
    "input made again": lambda: proto_of(node("Relu", "x"), node("Abs", "x", to="x")),
    "weight twice": lambda: _changed(lambda p: p.graph.initializer.append(p.graph.initializer[0])),
    "weight without name": lambda: _changed(lambda p: p.graph.initializer.add(data_type=1, dims=[0])),
    "attribute twice": lambda: _changed(
        lambda p: p.graph.node[0].attribute.extend([helper.make_attribute("a", 1)] * 2)
    ),
    "cycle": lambda: proto_of(node("Add", "x", "b", to="a"), node("Relu", "a", to="b"), node("Relu", "b")),
    "own input": lambda: proto_of(node("Add", "x", "y")),
    "cycle through a subgraph": _loop_through_subgraph,
    "outer value as output": _outer_value_as_output,
    "function calls itself": lambda: _functions(F=["F"]),
    "functions call each other": lambda: _functions(F=["G"], G=["H"], H=["F"]),
    "function calls itself in a branch": _function_within_if,
    "function twice": lambda: _changed(lambda p: p.functions.extend(list(_functions(F=[]).functions) * 2)),
    "name not text": lambda: _not_text(),
}


def _not_text() -> onnx.ModelProto:
    content = proto_of(node("Identity", "x")).SerializeToString()
    return onnx.ModelProto.FromString(content.replace(b"Identity", b"Identit\xff"))


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_model_that_makes_no_sense_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FileError) as caught:
        load(written(NONSENSE[kind](), tmp_path))
    assert "m.onnx" in str(caught.value.where)
    assert caught.value.next_step


def test_functions_that_unfold_to_billions_of_nodes_are_refused(tmp_path: Path) -> None:
    calls = {f"F{i}": [f"F{i + 1}"] * 10 for i in range(12)} | {"F12": []}
    with pytest.raises(UnsafeFileError, match="unfold"):
        load(written(_functions(**calls), tmp_path))


def test_custom_operators_and_functions_open(tmp_path: Path) -> None:
    model = load(written(proto_of(node("Mine", "x", domain="mine")), tmp_path))
    assert [n.op_type for n in model.graph] == ["Mine"]
    assert len(load(written(_functions(F=["G", "G"], G=[]), tmp_path)).functions) == 2


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    model = load(written(proto_of(node("Relu", "a"), node("Abs", "x", to="a")), tmp_path))
    assert [n.op_type for n in model.graph] == ["Abs", "Relu"]


def test_many_nodes_are_checked_quickly(tmp_path: Path) -> None:
    steps = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    proto = proto_of(node("Abs", "x", to="v0"), *steps, node("Abs", "v20000"))
    started = time.perf_counter()
    files.check_external(proto, tmp_path)
    assert files._check_structure(proto, "here")
    assert time.perf_counter() - started < 5


# There and back


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


def test_the_data_file_is_named_by_its_content_aligned_and_holds_equal_weights_once(tmp_path: Path) -> None:
    import hashlib

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
    monkeypatch.setattr(files, "INLINE_LIMIT", 4096)
    save(ir.from_proto(good()), tmp_path / "m.onnx")
    assert len(list(tmp_path.glob("*.data"))) == 1


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
