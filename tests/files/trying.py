"""Every verb on a file in a process of its own, with bounds on its memory and time.

The worker goes on from file to file; it is started again only when a file has killed it. One that is killed, slow, or
ends in anything but one of torchport's errors is a failure.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MEMORY = 3 * 2**30
SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A file that is a fault of torchport, and what happened."""

    name: str
    content: bytes
    what: str


def attempt(path: Path) -> None:
    """Load, describe, lint, cut, split and save; raises what is not torchport's own error."""
    import torchport as tp
    from torchport.errors import TorchportError

    verbs: list[Any] = [
        lambda: tp.graph.lint(path),
        lambda: str(tp.graph.describe(path)),
        lambda: tp.graph.cut(path),
        lambda: tp.graph.cut(path, ["a"], ["d"]),
        lambda: tp.graph.split(path, at=2),
        lambda: tp.graph.save(tp.graph.load(path), path.with_name("saved.onnx")),
    ]
    for verb in verbs:
        try:
            verb()
        except TorchportError:
            continue


class Worker:
    """A process that tries files, started again when one has killed it.

    Args:
        way: what it does with the file at `path`, as Python.
    """

    def __init__(self, way: str = "attempt(path)") -> None:
        self._way = way
        self.folder = Path(tempfile.mkdtemp(prefix="torchport-fuzz"))
        (self.folder / "w.data").write_bytes(bytes(4096))
        self.count = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def try_file(self, content: bytes) -> str:
        """What went wrong with a file of this content; nothing if all is well."""
        self.count += 1
        process = self._running()
        (self.folder / "m.onnx").write_bytes(content)
        assert process.stdin is not None
        process.stdin.write(b"next\n")
        process.stdin.flush()
        answer = self._answer(process)
        if answer is None or answer == "":
            said = f"took more than {SECONDS:.0f} s" if answer is None else "the process died"
            return f"{said}: {self._end()}"
        return "" if answer == "well" else answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            log = (self.folder / "log").open("wb")
            command = [sys.executable, __file__, str(self.folder), self._way]
            with log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
                )
            assert self._answer(self._process, 60) == "ready"
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float | None = None) -> str | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds or SECONDS)
        return process.stdout.readline().decode().strip() if ready else None

    def _end(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        process.kill()
        process.communicate()
        return (self.folder / "log").read_text(errors="replace")[-500:]


def failures(worker: Worker, files: Iterable[tuple[str, bytes]]) -> Iterator[Failure]:
    """The files that are a fault, of all those given."""
    for name, content in files:
        what = worker.try_file(content)
        if what:
            yield Failure(name, content, what)


def serve(folder: str, way: str) -> None:
    """The worker's side."""
    import torchport as tp
    import torchport.editing.extract
    import torchport.inspection.describe
    import torchport.inspection.lint.linter

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        try:
            exec(way, {"attempt": attempt, "path": Path(folder) / "m.onnx", "tp": tp, "os": os, "time": time})
            answer = "well"
        except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it is
            last = traceback.extract_tb(error.__traceback__)[-1]
            answer = f"{type(error).__name__}: {str(error)[:200]!r} at {os.path.basename(last.filename)}:{last.lineno}"
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
