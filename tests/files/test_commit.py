"""Faults while saving: the old model or the new one, nothing left behind, and the reason said."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from made_models import fail_at, listed, model, number_in

from torchport.errors import SaveError
from torchport.files import commit, filesystem
from torchport.files.onnx_files import load, save
from torchport.irtools import serialization

PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "shared")]  # for code in other processes


def _die_at(step: int, path: str, external: bool, before: bool) -> int:
    """Save in a forked child that ends itself, as kill -9 would, at the given fsync or rename."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = step

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and before:
                os._exit(9)
            result = real(*args, **kwargs)
            if left == 0:
                os._exit(9)
            return result

        return call

    code = 1
    try:
        os.fsync, os.replace = dying(os.fsync), dying(os.replace)
        save(model(2), path, external=external)
        code = 0
    finally:
        os._exit(code)


def sweep(folder: str) -> None:
    """Every place a save can be killed at; run in a process of its own, for it forks."""
    for external in (True, False):
        for before in (True, False):
            step, code = 0, 9
            while code == 9:
                step += 1
                path = Path(folder) / f"{external}{before}{step}.onnx"
                save(model(1), path, external=external)
                code = _die_at(step, str(path), external, before)
                found = number_in(path)
                assert code in (0, 9)
                assert found in ((1.0, 2.0) if code else (2.0,)), (external, before, step, found)
                save(model(3), path, external=external)
                assert number_in(path) == 3.0
                assert not [n for n in os.listdir(folder) if n.startswith(".")]
            assert step >= (6 if external else 4), step


def test_killed_at_any_flush_or_rename_the_old_or_the_new_model_is_whole(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = {PATHS!r}; import test_commit; "
    code += f"test_commit.sweep({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FAULTS = [("fsync", 1), ("fsync", 2), ("fsync", 3), ("replace", 1), ("replace", 2)]


@pytest.mark.parametrize(("call", "count"), FAULTS)
def test_an_interrupt_leaves_the_old_model_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    path = save(model(1), tmp_path / "m.onnx", external=True)
    before = listed(tmp_path)
    fail_at(monkeypatch, call, count, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        save(model(2), path, external=True)
    monkeypatch.undo()
    assert listed(tmp_path) == before
    assert number_in(path) == 1.0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(("call", "count"), FAULTS)
def test_a_disk_that_fills_up_is_said_to_with_the_bytes_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, count: int, number: int
) -> None:
    path = save(model(1), tmp_path / "m.onnx", external=True)
    before = listed(tmp_path)
    fail_at(monkeypatch, call, count, OSError(number, os.strerror(number)))
    with pytest.raises(SaveError, match=r"8,192 bytes are needed, [\d,]+ are free"):
        save(model(2), path, external=True)
    assert listed(tmp_path) == before
    assert number_in(path) == 1.0


@pytest.mark.parametrize("external", [True, False])
def test_a_failing_write_in_the_middle_of_the_weights_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    path = save(model(1), tmp_path / "m.onnx", external=external)
    before = listed(tmp_path)

    def full(self: object, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(serialization._Counted, "write", full)
    with pytest.raises(SaveError, match="not enough space"):
        save(model(2), path, external=external)
    assert listed(tmp_path) == before
    assert number_in(path) == 1.0


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a file system of Linux")
def test_a_folder_that_keeps_no_files_is_not_called_full() -> None:
    with pytest.raises(SaveError, match="keeps no files"):
        filesystem.check_target("/proc/a.onnx")


def test_a_real_full_disk_is_reported(tmp_path: Path) -> None:
    """A limit on file size is the nearest to a full disk a test can set up."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"sys.path[:0] = {PATHS!r}; from made_models import model; "
        "from torchport.files.onnx_files import save; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
        f"save(model(1, 1_000_000), {str(tmp_path / 'm.onnx')!r}, external=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "SaveError: cannot be written: File too large" in done.stderr
    assert listed(tmp_path) == []


def test_an_error_of_a_tensor_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> ir.TensorProtocol:
        raise RuntimeError("the device is gone")

    wrong = model(1)
    lazy = ir.LazyTensor(broken, dtype=ir.DataType.FLOAT, shape=ir.Shape([2048]), name="w")
    wrong.graph.initializers["w"].const_value = lazy
    for external in (True, False):
        with pytest.raises(SaveError, match="the device is gone"):
            save(wrong, tmp_path / "m.onnx", external=external)
    assert listed(tmp_path) == []


def test_weights_whose_file_is_gone_are_said_to_be_gone(tmp_path: Path) -> None:
    lost = load(save(model(1), tmp_path / "m.onnx", external=True))
    next(tmp_path.glob("*.data")).unlink()
    with pytest.raises(SaveError, match="are gone"):
        save(lost, tmp_path / "other.onnx")


def test_two_writers_leave_one_whole_result(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    failures: list[BaseException] = []

    def write(number: float) -> None:
        try:
            for round_ in range(12):
                save(model(number), path, external=round_ % 3 > 0, check=False)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test must show it
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in (1.0, 2.0, 1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert number_in(path) in (1.0, 2.0)
    assert len(listed(tmp_path)) == 2


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    (tmp_path / ".m.onnx.dead.torchport").mkdir()
    (tmp_path / ".m.onnx.mine").mkdir()
    with commit.staging(target) as living:
        save(model(1), target)
        assert living.exists()
    assert listed(tmp_path) == [".m.onnx.mine", "m.onnx"]


def test_a_lock_held_for_ever_is_an_error_not_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_LOCK_SECONDS", 0.05)
    with filesystem.locked(tmp_path), pytest.raises(SaveError, match="locked"):
        save(model(1), tmp_path / "m.onnx")
    assert listed(tmp_path) == []
