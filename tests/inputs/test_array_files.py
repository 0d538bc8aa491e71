"""One reader for numpy's files; what it cannot read it names, and it opens no pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from torchport.errors import InputError, SaveError
from torchport.files.filesystem import write_atomically
from torchport.inputs import arrays
from torchport.inputs.arrays import read_arrays


def test_an_npy_is_one_array_and_an_npz_has_names(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "b.npz", x=np.arange(2), y=np.zeros((0, 3)))
    (found,) = read_arrays(tmp_path / "a.npy").values()
    np.testing.assert_array_equal(found, [0, 1, 2])
    assert found.flags.writeable
    assert {n: a.shape for n, a in read_arrays(tmp_path / "b.npz").items()} == {"x": (2,), "y": (0, 3)}
    assert list(read_arrays(tmp_path / "b.npz", "y")) == ["y"]


def test_a_key_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", x=np.arange(2))
    with pytest.raises(InputError, match="it has no 'z', only x"):
        read_arrays(tmp_path / "b.npz", "z")


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_python_objects_are_not_unpickled(tmp_path: Path, name: str) -> None:
    save = np.save if name.endswith("npy") else np.savez
    save(tmp_path / name, np.array([None]), allow_pickle=True)
    with pytest.raises(InputError, match="it holds Python objects, no plain arrays"):
        read_arrays(tmp_path / name)


@pytest.mark.parametrize(("content", "reason"), [(b"", "it is empty"), (b"\x80\x04K\x01.", "no file of numpy's")])
def test_other_files_are_said_to_be_none_of_numpys(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_arrays(tmp_path / "a.npy")


def test_an_archive_larger_than_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(1000))
    monkeypatch.setattr(arrays, "memory", lambda: 1000)
    with pytest.raises(InputError, match="more than the memory"):
        read_arrays(tmp_path / "a.npz")


def test_a_small_archive_of_gigabytes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    assert read_arrays(tmp_path / "a.npz")["x"].size == 1 << 20
    monkeypatch.setattr(arrays, "_LARGE", 1 << 20)
    with pytest.raises(InputError, match="made to fill the memory"):
        read_arrays(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros(1 << 20))
    assert read_arrays(tmp_path / "b.npz")["x"].size == 1 << 20


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(1000))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:500])
    with pytest.raises(InputError, match=r"a\.npz' cannot be read") as caught:
        read_arrays(tmp_path / "a.npz")
    assert isinstance(caught.value.__cause__, zipfile.BadZipFile)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_atomically(target, lambda part: part.write_text("old"))

    def fails(part: Path) -> None:
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match="cannot be written: No space left"):
        write_atomically(target, fails)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(SaveError, match="cannot be written: No such file"):
        write_atomically(tmp_path / "absent" / "a.txt", lambda part: part.write_text("x"))
