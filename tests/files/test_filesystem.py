"""Where a model can be saved, and the reason said where it cannot."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from made_models import fail_at, listed, model, number_in

from torchport.errors import SaveError
from torchport.files import onnx_files
from torchport.files.filesystem import check_target
from torchport.files.onnx_files import save


def test_too_little_space_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(9000, 8000, 1000))
    monkeypatch.setattr(onnx_files, "staging", None)
    with pytest.raises(SaveError, match="8,192 bytes are needed, 1,000 are free"):
        save(model(1), tmp_path / "m.onnx")


def test_a_target_that_cannot_be_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("folder")
    for name in ("no/m.onnx", "file/m.onnx", "folder", "pipe", "link", "a\0b", "", "/dev/null"):
        with pytest.raises(SaveError) as caught:
            check_target(os.path.join(tmp_path, name) if name else "")
        assert caught.value.next_step
        with pytest.raises(SaveError):
            save(model(1), os.path.join(tmp_path, name) if name else "")
    assert check_target(tmp_path / "m.onnx") == tmp_path / "m.onnx"


def test_a_name_too_long_is_a_save_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError):
        save(model(1), tmp_path / ("a" * 300 + ".onnx"))


def test_a_folder_without_permission_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SaveError, match="cannot be written to"):
        check_target(tmp_path / "m.onnx")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_refusal_of_the_file_system_is_a_save_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail_at(monkeypatch, "replace", 1, OSError(number, os.strerror(number)))
    with pytest.raises(SaveError, match=os.strerror(number)):
        save(model(1), tmp_path / "m.onnx")
    assert listed(tmp_path) == []


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("precious")
    (tmp_path / "m.onnx").symlink_to("real")
    save(model(1), tmp_path / "m.onnx")
    assert (tmp_path / "real").read_text() == "precious"
    assert number_in(tmp_path / "m.onnx") == 1.0


def test_permissions_of_the_old_file_are_kept(tmp_path: Path) -> None:
    path = save(model(1), tmp_path / "m.onnx")
    path.chmod(0o640)
    save(model(2), path)
    assert path.stat().st_mode & 0o777 == 0o640
