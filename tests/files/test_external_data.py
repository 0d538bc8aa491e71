"""Hostile tensors: each is refused before anything is read, wherever in the model it hides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from torchport.errors import FileError, UnsafeFileError
from torchport.files.external_data import check_external
from torchport.files.onnx_files import load

FLOAT = TensorProto.FLOAT


def external(dims: tuple[int, ...] = (4,), dtype: int = FLOAT, **entries: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "w.data"} | entries).items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def value(name: str, dims: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, dims)


def model_of(graph: onnx.GraphProto, functions: list[onnx.FunctionProto] | None = None) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def with_initializer(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return model_of(helper.make_graph([node], "g", [value("x", [4])], [value("y")], [tensor]))


def written(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with 64 bytes of data, and a secret beside the folder."""
    inner = tmp_path / "model"
    (inner / "sub").mkdir(parents=True)
    (inner / "w.data").write_bytes(bytes(64))
    (inner / "sub" / "w.data").write_bytes(bytes(64))
    (tmp_path / "secret").write_bytes(bytes(64))
    return inner


@pytest.mark.parametrize("location", ["w.data", "sub/w.data", "./w.data"])
def test_data_inside_the_folder_is_accepted_and_read_lazily(folder: Path, location: str) -> None:
    model = load(written(with_initializer(external(location=location, offset="16", length="16")), folder))
    tensor = model.graph.initializers["w"].const_value
    assert tensor.raw is None
    assert tensor.numpy().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "sub/../../secret",
        "sub\\..\\..\\secret",
        "..",
        "/etc/passwd",
        "C:\\secret",
        "C:secret",
        "\\\\server\\share",
        "\\secret",
        "",
        ".",
        "w\0.data",
        "a" * 256,
        "sub/" + "b" * 256,
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_a_location_outside_the_folder_or_no_name_is_refused(folder: Path, location: str) -> None:
    with pytest.raises(UnsafeFileError) as caught:
        load(written(with_initializer(external(location=location)), folder))
    assert "m.onnx" in str(caught.value.where)
    assert caught.value.next_step


def test_no_location_at_all_is_refused(folder: Path) -> None:
    proto = with_initializer(external())
    del proto.graph.initializer[0].external_data[:]
    with pytest.raises(UnsafeFileError):
        load(written(proto, folder))


def test_a_missing_data_file_is_no_attack(folder: Path) -> None:
    with pytest.raises(FileError, match="missing") as caught:
        load(written(with_initializer(external(location="other.data")), folder))
    assert not isinstance(caught.value, UnsafeFileError)


def _link(folder: Path) -> str:
    (folder / "link").symlink_to(folder.parent / "secret")
    return "link"


def _link_inside(folder: Path) -> str:
    (folder / "link").symlink_to("w.data")
    return "link"


def _dangling(folder: Path) -> str:
    (folder / "link").symlink_to("nowhere")
    return "link"


def _middle_link(folder: Path) -> str:
    (folder / "up").symlink_to(folder.parent)
    return "up/secret"


def _hard_link(folder: Path) -> str:
    os.link(folder.parent / "secret", folder / "hard")
    return "hard"


def _fifo(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def _directory(folder: Path) -> str:
    return "sub"


def _file_as_folder(folder: Path) -> str:
    return "w.data/x"


@pytest.mark.parametrize(
    "make",
    [_link, _link_inside, _dangling, _middle_link, _hard_link, _fifo, _directory, _file_as_folder],
)
def test_a_data_file_that_is_no_plain_file_is_refused(folder: Path, make: Callable[[Path], str]) -> None:
    with pytest.raises(UnsafeFileError):
        load(written(with_initializer(external(location=make(folder))), folder))


@pytest.mark.skipif(not hasattr(os, "mknod") or os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_refused(folder: Path) -> None:
    try:
        os.mknod(folder / "null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices here")
    with pytest.raises(UnsafeFileError):
        load(written(with_initializer(external(location="null")), folder))


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "-1"},
        {"offset": "49"},
        {"offset": "64"},
        {"offset": "abc"},
        {"offset": ""},
        {"offset": " 1"},
        {"offset": "1_0"},
        {"offset": "1e3"},
        {"offset": "٣"},
        {"offset": str(2**50)},
        {"offset": str(2**63)},
        {"offset": "9" * 5000},
        {"length": "-16"},
        {"length": "0"},
        {"length": "8"},
        {"length": "17"},
        {"length": str(2**50)},
        {"length": "x"},
        {"offset": "56", "length": "16"},
        {"basepath": "/etc"},
        {"Location": "w.data"},
    ],
    ids=lambda e: ",".join(f"{k}={v[:12]}" for k, v in e.items()),
)
def test_offsets_lengths_and_keys_that_cannot_be_true_are_refused(folder: Path, entries: dict[str, str]) -> None:
    with pytest.raises(UnsafeFileError):
        load(written(with_initializer(external(**entries)), folder))


@pytest.mark.parametrize("key", ["location", "offset", "length"])
def test_a_key_given_twice_is_refused(folder: Path, key: str) -> None:
    tensor = external(offset="0", length="16")
    tensor.external_data.add(key=key, value={"location": "w.data", "offset": "0", "length": "16"}[key])
    with pytest.raises(UnsafeFileError, match="duplicate"):
        load(written(with_initializer(tensor), folder))


@pytest.mark.parametrize("dims", [(-1,), (2**62, 2**62), (2**31, 2**31, 2**31), (2**40, 2**40, 0), (17,), (1,) * 65])
@pytest.mark.parametrize("outside", [False, True])
def test_shapes_that_exceed_the_data_are_refused(folder: Path, dims: tuple[int, ...], outside: bool) -> None:
    inside = TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=bytes(16))
    with pytest.raises(UnsafeFileError):
        load(written(with_initializer(external(dims) if outside else inside), folder))


def _no_data(tensor: TensorProto) -> None:
    tensor.ClearField("raw_data")


def _too_much(tensor: TensorProto) -> None:
    tensor.raw_data += b"\0"


def _twice(tensor: TensorProto) -> None:
    tensor.float_data.extend([1, 2, 3, 4])


def _wrong_field(tensor: TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.int64_data.extend([1, 2, 3, 4])


def _raw_strings(tensor: TensorProto) -> None:
    tensor.data_type = TensorProto.STRING


def _in_and_out(tensor: TensorProto) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.data")


@pytest.mark.parametrize("spoil", [_no_data, _too_much, _twice, _wrong_field, _raw_strings, _in_and_out])
def test_inline_data_that_does_not_fit_is_refused(folder: Path, spoil: Callable[[TensorProto], None]) -> None:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    spoil(tensor)
    with pytest.raises(UnsafeFileError):
        load(written(with_initializer(tensor), folder))


@pytest.mark.parametrize("dtype", [0, 77])
def test_an_unknown_data_type_is_a_broken_file(folder: Path, dtype: int) -> None:
    with pytest.raises(FileError, match="data type"):
        load(written(with_initializer(external(dtype=dtype)), folder))


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("dtype", [d for d in TensorProto.DataType.values() if d != TensorProto.UNDEFINED])
def test_every_data_type_onnx_writes_is_accepted(folder: Path, dtype: int, raw: bool) -> None:
    if dtype == TensorProto.STRING:
        tensor = helper.make_tensor("w", dtype, [3], [b"a", b"", b"c"])
    else:
        array = np.zeros(3, helper.tensor_dtype_to_np_dtype(dtype))
        tensor = numpy_helper.from_array(array, "w") if raw else helper.make_tensor("w", dtype, [3], array)
    check_external(with_initializer(tensor), folder)


def _branch(name: str, nodes: list[onnx.NodeProto], tensors: tuple[TensorProto, ...] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(nodes[-1].output[0])], list(tensors))


def _in_if(tensor: TensorProto) -> onnx.ModelProto:
    then = _branch("then", [helper.make_node("Add", ["x", "w"], ["a"])], (tensor,))
    other = _branch("else", [helper.make_node("Identity", ["x"], ["b"])])
    inner = helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other)
    outer = helper.make_node("If", ["c"], ["y"], then_branch=_branch("t", [inner]), else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    return model_of(helper.make_graph([outer], "g", [value("x"), condition], [value("y")]))


def _in_constant(tensor: TensorProto) -> onnx.ModelProto:
    return model_of(helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "g", [], [value("y")]))


def _in_disguise(tensor: TensorProto) -> onnx.ModelProto:
    proto = _in_constant(tensor)
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.INT
    return proto


def _in_list(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Mine", [], ["y"], domain="mine", values=[tensor])
    return model_of(helper.make_graph([node], "g", [], [value("y")]))


def _in_function(tensor: TensorProto) -> onnx.ModelProto:
    body = [helper.make_node("Constant", [], ["b"], value=tensor)]
    function = helper.make_function("mine", "F", [], ["b"], body, [helper.make_opsetid("", 20)])
    node = helper.make_node("F", [], ["y"], domain="mine")
    return model_of(helper.make_graph([node], "g", [], [value("y")]), [function])


def _in_default(tensor: TensorProto) -> onnx.ModelProto:
    proto = _in_function(numpy_helper.from_array(np.zeros(1, np.float32)))
    proto.functions[0].attribute_proto.append(helper.make_attribute("default", tensor))
    return proto


def _sparse(tensor: TensorProto) -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.arange(4, dtype=np.int64), "i")
    return helper.make_sparse_tensor(tensor, indices, [8])


def _in_sparse(tensor: TensorProto) -> onnx.ModelProto:
    proto = with_initializer(tensor)
    del proto.graph.initializer[:]
    proto.graph.sparse_initializer.append(_sparse(tensor))
    return proto


def _in_sparse_attribute(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["y"], sparse_value=_sparse(tensor))
    return model_of(helper.make_graph([node], "g", [], [value("y")]))


def _in_training(tensor: TensorProto) -> onnx.ModelProto:
    proto = with_initializer(numpy_helper.from_array(np.zeros(4, np.float32), "w"))
    proto.training_info.add().algorithm.initializer.append(tensor)
    return proto


PLACES = [
    with_initializer,
    _in_if,
    _in_constant,
    _in_disguise,
    _in_list,
    _in_function,
    _in_default,
    _in_sparse,
    _in_sparse_attribute,
    _in_training,
]


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_tensor_is_found_wherever_it_hides(
    folder: Path, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    with pytest.raises(UnsafeFileError):
        load(written(place(external(location="../secret")), folder))
    check_external(place(external(location="w.data")), folder)


@pytest.mark.parametrize("place", [_in_if, _in_constant, _in_list, _in_function])
def test_external_data_is_readable_wherever_it_is(
    folder: Path, place: Callable[[TensorProto], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchport.files.onnx_files import to_bytes

    monkeypatch.chdir(folder)
    model = load(written(place(external()), folder).name)
    monkeypatch.chdir(folder.parent)
    assert b"w.data" not in to_bytes(model)


def test_thousands_of_nested_subgraphs_do_not_exhaust_the_stack(folder: Path) -> None:
    proto = with_initializer(numpy_helper.from_array(np.zeros(4, np.float32), "w"))
    graph = proto.graph
    for _ in range(5000):
        graph = graph.node.add(op_type="If").attribute.add(name="then_branch").g
    graph.initializer.append(external(location="../secret"))
    with pytest.raises(UnsafeFileError):
        check_external(proto, folder)


def test_a_file_of_thousands_of_nested_subgraphs_is_a_typed_error(folder: Path) -> None:
    content = b""
    for _ in range(5000):  # graph ⊃ node ⊃ attribute ⊃ graph …, written by hand: protobuf refuses to
        for number in (6, 5, 1):
            content = bytes([number << 3 | 2]) + _varint(len(content)) + content
    path = folder / "m.onnx"
    path.write_bytes(b"\x08\x0a" + b"\x3a" + _varint(len(content)) + content + b"\x42\x02\x10\x14")
    with pytest.raises(FileError):
        load(path)


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def test_sparse_weights_are_not_dropped_in_silence(folder: Path) -> None:
    for place in (_in_sparse, _in_sparse_attribute):
        with pytest.raises(FileError, match="sparse"):
            load(written(place(external()), folder))


def test_training_information_is_not_dropped_in_silence(folder: Path) -> None:
    with pytest.raises(FileError, match="training"):
        load(written(_in_training(external()), folder))
