"""Inputs from the command line: how they are written, what they become, and files that mean harm."""

from __future__ import annotations

import collections
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from torchport.capture.inputs import build_inputs, from_example
from torchport.errors import InputError
from torchport.inputs.spec import InputSpec, Random, Scalar, Stored, parse_input
from torchport.tensors import DTYPES, FLOATS, INTEGERS, dtype_name


def build(*texts: str, seed: int = 0):
    return build_inputs([parse_input(text) for text in texts], seed=seed)


# --- how it is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("x=float32[1,3,224,224]", "x", Random("float32", (1, 3, 224, 224))),
        ("x=int64[2, 8]@0..99", "x", Random("int64", (2, 8), 0, 99)),
        ("x=float32[2]@-1..1", "x", Random("float32", (2,), -1.0, 1.0)),
        ("x=float16[2]@1e-3..0.5", "x", Random("float16", (2,), 0.001, 0.5)),
        ("x=int8[2]@-128..127", "x", Random("int8", (2,), -128, 127)),
        ("x=bool[2]", "x", Random("bool", (2,))),
        ("x=float32[]", "x", Random("float32", ())),
        ("x=float32[0,4]", "x", Random("float32", (0, 4))),
        ("float32[1,3]", None, Random("float32", (1, 3))),
        ("x=a/b.npy", "x", Stored("a/b.npy")),
        ("x=a.pt", "x", Stored("a.pt")),
        ("x=a.npz:key", "x", Stored("a.npz", "key")),
        ("a.npz", None, Stored("a.npz")),
        ("./a=b.npy", None, Stored("./a=b.npy")),
        (r"x=C:\data\a.npz:key", "x", Stored(r"C:\data\a.npz", "key")),
        ("scale=2.0", "scale", Scalar(2.0)),
        ("n=3", "n", Scalar(3)),
        ("n=-3", "n", Scalar(-3)),
        ("flag=true", "flag", Scalar(True)),
        ("flag=False", "flag", Scalar(False)),
        ("mask=none", "mask", Scalar(None)),
        ("mode='text'", "mode", Scalar("text")),
        ('mode="a=b [1]"', "mode", Scalar("a=b [1]")),
        (r"mode='it\'s'", "mode", Scalar("it's")),
        ("batch.x=float32[2,4]", "batch.x", Random("float32", (2, 4))),
        ("items.0=int64[1]", "items.0", Random("int64", (1,))),
    ],
)
def test_each_form_is_read(text: str, name: str | None, value: object) -> None:
    assert parse_input(text) == InputSpec(name, value)


@pytest.mark.parametrize(
    ("text", "character", "says"),
    [
        ("", 1, "empty"),
        ("x=", 3, "nothing after the name"),
        ("x=float33[1]", 3, "did you mean float32"),
        ("x=flot[1]", 3, "known are float32"),
        ("x=[1]", 3, "no dtype"),
        ("x=float32[1,-3]", 13, "'-3' is no size"),
        ("x=float32[1,a]", 13, "'a' is no size"),
        ("x=float32[1,,2]", 13, "is no size"),
        ("x=float32[1.5]", 11, "is no size"),
        ("x=float32[1,2", 14, "does not close"),
        ("x=float32[1048576,1048577]", 11, "more than 1,099,511,627,776"),
        ("x=float32[0,99999999999999]", 11, "more than"),
        ("x=float32[" + "1," * 64 + "1]", 11, "dimensions"),
        ("x=int64[2]@5..1", 12, "ends before"),
        ("x=int64[2]@0..1.5", 15, "no whole number"),
        ("x=uint8[2]@0..256", 15, "cannot hold"),
        ("x=float16[2]@0..1e6", 17, "cannot hold"),
        ("x=float32[2]@0", 14, "no range"),
        ("x=bool[2]@0..1", 11, "takes no range"),
        ("x=hello", 3, "neither a tensor, a file nor a value"),
        ("1x=float32[1]", 1, "no name"),
        ("a.00=float32[1]", 3, "no key or index"),
        ("a..b=float32[1]", 3, "no key or index"),
        ("mode='text", 6, "quotes"),
    ],
)
def test_a_fault_is_shown_with_its_place_and_the_right_form(text: str, character: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_input(text)
    assert says in caught.value.what
    assert caught.value.where.endswith(f"character {character}")
    assert "write it like" in caught.value.next_step


names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}(\.([a-z_][a-z0-9_]{0,3}|0|[1-9][0-9]?)){0,2}", fullmatch=True)
shapes = st.lists(st.integers(0, 50), max_size=5).map(tuple)
finite = st.floats(-60000, 60000, width=16)
ranges = st.tuples(finite, finite).map(sorted)
whole = st.tuples(st.integers(0, 127), st.integers(0, 127)).map(sorted)
tensors = st.one_of(
    st.builds(Random, st.sampled_from(DTYPES), shapes),
    st.builds(lambda d, s, r: Random(d, s, *r), st.sampled_from(FLOATS), shapes, ranges),
    st.builds(lambda d, s, r: Random(d, s, *r), st.sampled_from(INTEGERS), shapes, whole),
)
files = st.builds(Stored, st.from_regex(r"(/|\./)?[a-z0-9_/]{1,8}\.(npy|pt)", fullmatch=True)) | st.builds(
    Stored,
    st.from_regex(r"[a-z0-9_/]{1,8}\.npz", fullmatch=True),
    st.none() | st.from_regex(r"\w+", fullmatch=True),
)
scalars = st.builds(
    Scalar, st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20)
)


@given(st.builds(InputSpec, st.none() | names, tensors | files | scalars))
def test_every_spec_reads_back_as_it_was_written(spec: InputSpec) -> None:
    assert parse_input(str(spec)) == spec


@given(st.text() | st.text(alphabet="x=.[]@,0123456789-'\"floatin32npyz:/", max_size=30))
def test_random_text_is_read_or_refused_as_a_bad_input(text: str) -> None:
    try:
        spec = parse_input(text)
    except InputError:
        return
    assert parse_input(str(spec)) == spec


# --- what it becomes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_becomes_a_tensor_of_that_dtype(dtype: str) -> None:
    (tensor, scalar), _ = build(f"{dtype}[2,3]", f"{dtype}[]")
    assert dtype_name(tensor.dtype) == dtype
    assert tensor.shape == (2, 3)
    assert scalar.shape == ()


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    first, again, other = (build("x=float32[100]", "float32[100]", seed=s) for s in (0, 0, 1))
    assert torch.equal(first[1]["x"], again[1]["x"])
    assert not torch.equal(first[1]["x"], other[1]["x"])
    assert not torch.equal(first[1]["x"], first[0][0])


def test_ranges_are_kept_and_both_ends_of_whole_numbers_occur() -> None:
    (whole, default, real), _ = build("int64[2000]@3..5", "int32[200]", "float64[2000]@-1..1")
    assert whole.unique().tolist() == [3, 4, 5]
    assert default.unique().tolist() == [0, 1]
    assert -1 <= real.min() < -0.9
    assert 0.9 < real.max() <= 1


def test_the_widest_range_a_dtype_has_gives_finite_numbers() -> None:
    (wide, whole), _ = build(f"float64[1000]@-{1e308}..{1e308}", f"uint64[100]@0..{2**64 - 1}")
    assert torch.isfinite(wide).all()
    assert whole.dtype == torch.uint64


def test_dotted_names_become_dicts_and_lists() -> None:
    args, kwargs = build("b.x=1", "b.y.z=2", "items.1='b'", "items.0='a'", "true")
    assert args == (True,)
    assert kwargs == {"b": {"x": 1, "y": {"z": 2}}, "items": ["a", "b"]}


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (("x=1", "x=2"), "given twice"),
        (("x=1", "x.y=2"), "as a whole and in part"),
        (("x.y.z=1", "x.y=2"), "as a whole and in part"),
        (("x.0=1", "x.2=2"), "not numbered"),
        (("x.0=1", "x.a=2"), "not numbered"),
    ],
)
def test_names_that_contradict_each_other_are_refused(texts: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        build(*texts)


def test_a_tensor_larger_than_the_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(InputError, match="does not fit into memory"):
        build("x=float64[1048576,1048576]")


def test_a_spec_can_be_made_without_text() -> None:
    assert str(InputSpec.tensor("x", "float32", [1, 2])) == "x=float32[1,2]"
    with pytest.raises(InputError, match="no example"):
        InputSpec.tensor("x", "float8_e4m3fn", [1])


def test_reading_a_spec_does_not_import_torch() -> None:
    code = (
        "import sys; from torchport.inputs.spec import parse_input; parse_input('x=bfloat16[1]@0..1');"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.array(3), np.zeros((0, 4), "float32"), np.arange(3, dtype=">i4")],
    ids=["matrix", "scalar", "empty", "big-endian"],
)
def test_an_npy_file_gives_its_array(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    _, kwargs = build(f"x={tmp_path}/a.npy")
    np.testing.assert_array_equal(kwargs["x"].numpy(), array)


def test_a_columnwise_array_keeps_its_values(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "a.npy", array)
    (got,), _ = build(f"{tmp_path}/a.npy")
    np.testing.assert_array_equal(got.numpy(), array)


def test_an_npz_file_gives_all_its_arrays_or_the_one_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.ones(2), y=np.zeros(3))
    assert set(build(f"{tmp_path}/a.npz")[1]) == {"x", "y"}
    assert build(f"z={tmp_path}/a.npz:y")[1]["z"].tolist() == [0, 0, 0]
    assert build(f"{tmp_path}/a.npz:x")[0][0].tolist() == [1, 1]
    with pytest.raises(InputError, match="has 2 arrays: x, y"):
        build(f"z={tmp_path}/a.npz")
    with pytest.raises(InputError, match="has no 'w', only x, y"):
        build(f"z={tmp_path}/a.npz:w")


def test_names_in_a_file_must_be_names_of_arguments(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"b.x": np.ones(2)})
    assert list(build(f"{tmp_path}/a.npz")[1]["b"]) == ["x"]
    np.savez(tmp_path / "a.npz", **{"1 2": np.ones(2)})
    torch.save({"": torch.ones(2)}, tmp_path / "a.pt")
    for name in ("a.npz", "a.pt"):
        with pytest.raises(InputError, match="no name of an argument"):
            build(f"{tmp_path / name}")


@pytest.mark.parametrize(
    ("saved", "args", "kwargs"),
    [
        (torch.ones(2), 1, []),
        ((torch.ones(2), torch.ones(3)), 2, []),
        ([torch.ones(2)], 1, []),
        ({"x": torch.ones(2)}, 0, ["x"]),
        (((torch.ones(2),), {"y": torch.ones(2)}), 1, ["y"]),
    ],
)
def test_an_unnamed_pt_file_gives_the_arguments_it_holds(
    tmp_path: Path, saved: object, args: int, kwargs: list[str]
) -> None:
    torch.save(saved, tmp_path / "a.pt")
    got = build(f"{tmp_path}/a.pt")
    assert (len(got[0]), list(got[1])) == (args, kwargs)


def test_a_named_pt_file_gives_one_argument_whatever_it_holds(tmp_path: Path) -> None:
    torch.save([torch.ones(2), torch.ones(3)], tmp_path / "a.pt")
    _, kwargs = build(f"x={tmp_path}/a.pt")
    assert [len(t) for t in kwargs["x"]] == [2, 3]


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_pickles_in_input_files_are_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = Payload(marker)
    torch.save(hostile, tmp_path / "zip.pt")
    torch.save(hostile, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(hostile))
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(hostile))
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(hostile))
    np.save(tmp_path / "object.npy", np.array([hostile], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "object.npz", x=np.array([hostile], dtype=object))
    for name in ("zip.pt", "old.pt", "raw.pt", "raw.npy", "raw.npz", "object.npy", "object.npz"):
        with pytest.raises(InputError):
            build(f"x={tmp_path / name}")
        assert not marker.exists(), name
    with (tmp_path / "raw.pt").open("rb") as file:
        pickle.load(file)
    assert marker.exists(), "the payload would have worked"


def test_a_file_cut_short_at_any_length_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(4))
    np.savez(tmp_path / "a.npz", x=np.ones(4))
    torch.save(torch.ones(4), tmp_path / "a.pt")
    for name in ("a.npy", "a.npz", "a.pt"):
        whole = (tmp_path / name).read_bytes()
        for length in range(0, len(whole), max(1, len(whole) // 40)):
            (tmp_path / f"cut-{name}").write_bytes(whole[:length])
            with pytest.raises(InputError):
                build(f"x={tmp_path}/cut-{name}")


def test_a_header_that_lies_about_its_size_takes_no_memory(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    (tmp_path / "a.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", data)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InputError, match="cannot be read"):
            build(f"x={tmp_path / name}")


def test_other_things_than_files_of_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.save(tmp_path / "record.npy", np.zeros(2, dtype=[("a", "f4")]))
    (tmp_path / "page.pt").write_text("<html>")
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("folder.npy", "text.npy", "record.npy", "page.pt", "pipe.npy", "missing.npy"):
        with pytest.raises(InputError):
            build(f"x={tmp_path / name}")


def test_a_zip_bomb_of_tensors_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(1), tmp_path / "a.pt")
    buffer = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, bytes(200 << 20) if member.endswith("data/0") else old.read(member))
    (tmp_path / "a.pt").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="would unpack"):
        build(f"x={tmp_path}/a.pt")


# --- example_inputs() -----------------------------------------------------------------------------------------


def test_what_example_inputs_returns_is_taken_as_arguments() -> None:
    t = torch.ones(2)
    pair = collections.namedtuple("pair", "a b")
    assert from_example(t)[0][0] is t
    assert from_example((t, 1)) == ((t, 1), {})
    assert from_example([t]) == ((t,), {})
    assert from_example({"x": t}) == ((), {"x": t})
    assert from_example(collections.OrderedDict(x=t)) == ((), {"x": t})
    assert from_example(((t,), {"y": 1})) == ((t,), {"y": 1})
    assert from_example((t, {"y": 1})) == ((t, {"y": 1}), {})
    assert from_example(pair(t, t)) == ((t, t), {})
    assert from_example(()) == ((), {})


@pytest.mark.parametrize("value", [None, 3, "text", {1: 2}, {1, 2}, object()])
def test_what_cannot_be_arguments_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="example inputs are a"):
        from_example(value)
