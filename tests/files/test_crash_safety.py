"""`kill -9` while a model is saved, at every write, flush, move and removal: the old model is there or the new, whole.

Each save runs in a forked child whose calls to the operating system are counted. The child kills itself at the n-th,
before it, after it, or with half of the bytes written.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_models import listed, model, number_in

from torchport.files.onnx_files import save

PATHS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "shared")]  # for code in other processes

SIZE = 6000  # numbers: 24 kB, more than one write
KINDS = {"inside": (False, False), "outside": (True, True), "moves out": (False, True), "moves in": (True, False)}
CALLS = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "chmod")


class _Killer:
    """Counts calls, and ends the process at one of them as `kill -9` would."""

    def __init__(self, step: int, when: str) -> None:
        self.left, self.when = step, when

    def around(self, real: Callable[..., Any], half: Callable[[], Any] | None = None) -> Any:
        self.left -= 1
        if self.left == 0 and self.when == "half" and half is not None:
            half()
        if self.left == 0 and self.when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real()
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        io.open = self._open

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.around(lambda: real(*args, **kwargs))

    def _open(self, path: Any, mode: str = "r", *args: Any, real: Any = io.open, **kwargs: Any) -> Any:
        if mode == "r" or "r" in mode:
            return real(path, mode, *args, **kwargs)
        raw = self.around(lambda: _Raw(path, mode.replace("b", "")))
        raw.killer = self
        file = io.BufferedWriter(raw, buffer_size=4096)
        return file if "b" in mode else io.TextIOWrapper(file, "utf-8")


class _Raw(io.FileIO):
    killer: _Killer

    def write(self, data: Any, /) -> int:
        whole = super().write
        return int(self.killer.around(lambda: whole(data), lambda: whole(bytes(data)[: len(data) // 2])))


def _killed(path: Path, external: bool, step: int, when: str) -> bool:
    """Whether a save in a forked child met its end at the given step; else it was done before."""
    child = os.fork()
    if not child:
        try:
            _Killer(step, when).install()
            save(model(2, SIZE), path, external=external)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def sweep(folder: str, kind: str) -> None:
    """Every place a save can be killed at; run in a process of its own, for it forks."""
    was_outside, outside = KINDS[kind]
    for when in ("before", "half", "after"):
        step, seen, killed = 0, set(), True
        while killed:
            step += 1
            path = Path(folder) / "m.onnx"
            save(model(1, SIZE), path, external=was_outside)
            killed = _killed(path, outside, step, when)
            found = number_in(path)
            assert found in ((1.0, 2.0) if killed else (2.0,)), (when, step, found)
            seen.add(found)
            save(model(3, SIZE), path, external=outside, check=False)
            assert number_in(path) == 3.0
            files = listed(Path(folder))
            assert len(files) == 1 + outside, (when, step, files)
        assert seen == {1.0, 2.0}
        assert step > 14, step


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_call_the_old_or_the_new_model_is_whole_and_the_next_save_cleans_up(
    tmp_path: Path, kind: str
) -> None:
    code = f"import sys; sys.path[:0] = {PATHS!r}; import test_crash_safety; "
    code += f"test_crash_safety.sweep({str(tmp_path)!r}, {kind!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_data_file_a_killed_writer_noted_stays_if_a_model_needs_it_or_it_is_not_this_models(tmp_path: Path) -> None:
    path = save(model(1), tmp_path / "m.onnx", external=True)
    (tmp_path / "copy.onnx").write_bytes(path.read_bytes())
    needed = next(tmp_path.glob("*.data"))
    foreign = [tmp_path / "other.0123456789abcdef.data", tmp_path / "m.notes.data"]
    nobodys = tmp_path / "m.0123456789abcdef.data"
    for file in (*foreign, nobodys):
        file.write_bytes(b"kept")
    left = tmp_path / ".m.onnx.dead.torchport"
    left.mkdir()
    (left / "nobodys").write_text("\n".join([needed.name, nobodys.name, *(f.name for f in foreign), "../m.onnx"]))
    save(model(2), path)
    assert not nobodys.exists()
    assert not left.exists()
    assert all(file.exists() for file in (needed, *foreign))
    assert number_in(tmp_path / "copy.onnx") == 1.0
