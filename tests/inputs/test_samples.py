"""Samples are read one at a time, from anywhere, and what does not fit is named."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from torchport.errors import InputError, SaveError
from torchport.inputs.samples import ARGUMENTS, OUTPUT, Sample, read_samples, save_call, save_sample

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def only(source: object) -> Sample:
    (sample,) = read_samples(source)
    return sample


def test_a_folder_is_read_in_the_order_people_count(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        np.savez(tmp_path / f"s{number}.npz", x=X + number)
    np.save(tmp_path / "a.npy", X)
    (tmp_path / "notes.txt").write_text("not a sample")
    (tmp_path / ".s0.npz.1.tmp").write_text("half a sample")
    samples = list(read_samples(tmp_path))
    assert [s.name for s in samples] == ["a.npy", "s1.npz", "s2.npz", "s10.npz"]
    assert samples[2].arrays["x"][0, 0] == 2
    assert list(samples[0].arrays) == ["arr_0"]


def test_one_file_is_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=X, n=np.int64(3))
    assert {k: v.shape for k, v in only(str(tmp_path / "s.npz")).arrays.items()} == {"x": (2, 3), "n": ()}


def test_samples_are_read_only_when_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "s1.npz", x=X)
    (tmp_path / "s2.npz").write_bytes(b"broken")
    samples = read_samples(tmp_path)
    assert next(samples).name == "s1.npz"
    with pytest.raises(InputError, match=r"s2\.npz"):
        next(samples)

    asked = []

    def generator() -> Iterator[Any]:
        for number in range(3):
            asked.append(number)
            yield {"x": X}

    lazily = read_samples(generator())
    next(lazily)
    assert asked == [0]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ({"x": X}, [["x"]]),
        ((X, X), [["arr_0", "arr_1"]]),
        (X, [["arr_0"]]),
        (torch.ones(2), [["arr_0"]]),
        ([X, X], [["arr_0"], ["arr_0"]]),
        ([(X, 3), {"x": torch.ones(1)}], [["arr_0", "arr_1"], ["x"]]),
        (torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2), [["arr_0"], ["arr_0"]]),
    ],
)
def test_samples_come_from_memory_too(source: object, names: list[list[str]]) -> None:
    assert [list(s.arrays) for s in read_samples(source)] == names


def test_torch_tensors_become_arrays_of_their_dtype() -> None:
    arrays = only({"a": torch.ones(2, dtype=torch.bfloat16, requires_grad=True), "b": torch.tensor(3)}).arrays
    assert arrays["a"].dtype == ml_dtypes.bfloat16
    assert arrays["b"].dtype == np.int64


def broken(path: Path, kind: str) -> Path:
    file = path / "bad.npz"
    np.savez(file, x=np.arange(10000.0))
    if kind == "truncated":
        file.write_bytes(file.read_bytes()[:2000])
    elif kind == "damaged":
        data = bytearray(file.read_bytes())
        data[3000] ^= 255
        file.write_bytes(data)
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "text":
        file.write_text("hello")
    elif kind == "objects":
        np.savez(file, x=np.array([{"a": 1}], object))
    elif kind == "a lie about its size":
        with zipfile.ZipFile(file, "w") as archive:
            head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }\n"
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    return file


@pytest.mark.parametrize("kind", ["truncated", "damaged", "empty", "text", "objects", "a lie about its size"])
def test_a_sample_that_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    file = broken(tmp_path, kind)
    with pytest.raises(InputError, match=r"bad\.npz' cannot be read") as caught:
        list(read_samples(file))
    assert ("it holds Python objects" in caught.value.what) == (kind == "objects")


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty"):
        read_samples(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"holds no \.npz or \.npy"):
        read_samples(tmp_path)
    with pytest.raises(InputError, match="neither"):
        read_samples(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="there is no file or folder"):
        read_samples(tmp_path / "absent")
    with pytest.raises(InputError, match="there are no samples"):
        list(read_samples([]))
    with pytest.raises(InputError, match="int holds no samples"):
        read_samples(3)
    with pytest.raises(InputError, match="sample 0 is object"):
        list(read_samples([object()]))
    with pytest.raises(InputError, match="'x' of sample 0 holds Python objects"):
        read_samples({"x": np.array([None])})


def test_what_is_saved_comes_back_whatever_its_name_and_dtype(tmp_path: Path) -> None:
    arrays = {
        "file": X,
        "/layer1/conv.weight": X.T,
        "half": X.astype(ml_dtypes.bfloat16),
        "byte": X.astype(ml_dtypes.float8_e4m3fn),
        "nibble": X.astype(ml_dtypes.int4),
        "text": np.array(["a", "bcd"], object),
        "none": np.zeros((0, 3), np.int64),
        "one": np.array(2.5),
        OUTPUT + "y": X + 1,
        ARGUMENTS: np.array('{"scale": 2}'),
    }
    save_sample(tmp_path / "s.npz", arrays)
    sample = only(tmp_path / "s.npz")
    assert list(sample.arrays) == ["file", "/layer1/conv.weight", "half", "byte", "nibble", "text", "none", "one"]
    for name, array in sample.arrays.items():
        np.testing.assert_array_equal(array, arrays[name])
        assert name == "text" or array.dtype == arrays[name].dtype
    np.testing.assert_array_equal(sample.outputs["y"], X + 1)
    assert sample.arguments == {"scale": 2}
    assert os.listdir(tmp_path) == ["s.npz"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    save_sample(tmp_path / "s.npz", {"x": X})
    with pytest.raises(SaveError, match="'y' holds Python objects"):
        save_sample(tmp_path / "s.npz", {"x": X + 1, "y": np.array([None])})
    np.testing.assert_array_equal(only(tmp_path / "s.npz").arrays["x"], X)
    assert os.listdir(tmp_path) == ["s.npz"]
    with pytest.raises(SaveError, match="cannot be written: No such file"):
        save_sample(tmp_path / "absent" / "s.npz", {"x": X})


def test_a_recorded_sample_is_saved_with_all_that_was_recorded(tmp_path: Path) -> None:
    bits = X.astype(ml_dtypes.bfloat16)
    before = Sample("s.npz", {"x": X}, {"y": bits}, {"scale": 2.0}, {"x": {"tensor": "x"}, "scale": {"value": 2.0}})
    save_call(tmp_path / "s.npz", before)
    after = only(tmp_path / "s.npz")
    assert (after.name, after.arguments, after.given) == (before.name, before.arguments, before.given)
    np.testing.assert_array_equal(after.arrays["x"], X)
    assert after.outputs["y"].dtype == bits.dtype
    save_call(tmp_path / "plain.npz", Sample("plain.npz", {"x": X}))
    assert np.load(tmp_path / "plain.npz").files == ["x"]
