"""Files that are no ONNX models, or no longer."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from made_models import good, node, proto_of, written

from torchport.errors import FileError
from torchport.files.onnx_files import load, save


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
