"""Processes that save to one path at the same time: one wins whole, and nothing of the others is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from made_models import listed, model, number_in

from torchport.errors import FileError
from torchport.files import commit, filesystem
from torchport.files.onnx_files import load, save

PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "shared")]  # for code in other processes

ROUNDS = 15


def write(path: str, number: float, gate: str) -> None:
    """One of the writers: begins when the gate opens, and saves inside and outside by turns."""
    made = model(number, 5000)
    Path(f"{gate}.{number}").touch()
    while not os.path.exists(gate):
        time.sleep(0.001)
    for turn in range(ROUNDS):
        save(made, path, external=turn % 3 > 0, check=False)


def _writers(path: Path, gate: Path, count: int) -> list[subprocess.Popen[str]]:
    code = f"import sys; sys.path[:0] = {PATHS!r}; import test_two_writers; "
    calls = [f"test_two_writers.write({str(path)!r}, {float(n)}, {str(gate)!r})" for n in range(1, count + 1)]
    started = [subprocess.Popen([sys.executable, "-c", code + c], stderr=subprocess.PIPE, text=True) for c in calls]
    while len(list(gate.parent.iterdir())) < count:
        assert all(writer.poll() is None for writer in started)
        time.sleep(0.01)
    return started


def test_two_processes_at_once_leave_one_whole_model_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "m.onnx"
    writers = _writers(path, tmp_path / "gate" / "open", 2)
    (tmp_path / "gate" / "open").touch()
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen |= _seen(path)
    said = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    assert number_in(path) in (1.0, 2.0)
    assert len(listed(path.parent)) == 2  # the last of each goes outside
    assert seen <= {1.0, 2.0}


def _seen(path: Path) -> set[float]:
    """What a reader finds meanwhile: a whole model, or a clear word that its data was just replaced."""
    try:
        tensor = load(path).graph.initializers["w"].const_value
        assert tensor is not None
        return {float(n) for n in np.unique(tensor.numpy())}
    except (FileError, FileNotFoundError):
        return set()


def test_a_writer_that_is_killed_does_not_keep_the_other_from_saving(tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "m.onnx"
    (killed,) = _writers(path, tmp_path / "gate" / "open", 1)
    (tmp_path / "gate" / "open").touch()
    while not path.exists():
        time.sleep(0.001)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    save(model(7, 5000), path, external=True)
    assert number_in(path) == 7.0
    assert len(listed(path.parent)) == 2


def test_a_writer_that_ends_while_another_begins_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hidden folder is listed, and gone when it is opened."""
    path, ending = tmp_path / "m.onnx", tmp_path / ".m.onnx.ending.torchport"
    ending.mkdir()

    def opened(folder: Path) -> contextlib.AbstractContextManager[int | None]:
        if folder == ending:
            ending.rmdir()
        return filesystem.opened(folder)

    monkeypatch.setattr(commit, "opened", opened)
    save(model(3, 5000), path)
    assert number_in(path) == 3.0
    assert listed(tmp_path) == ["m.onnx"]


def test_saving_again_in_another_process_gives_the_same_bytes_and_no_more_of_them(tmp_path: Path) -> None:
    path = save(model(1, 5000), tmp_path / "m.onnx", external=True)
    before = {name: (tmp_path / name).read_bytes() for name in listed(tmp_path)}
    code = f"from torchport.files.onnx_files import load, save; save(load({str(path)!r}), {str(path)!r}, external=True)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert {name: (tmp_path / name).read_bytes() for name in listed(tmp_path)} == before
