"""A process that obeys commands: start it, send commands within a time limit, read its answers, end it.

The other side is `child.obey`. On Linux a process is stopped while it has no command: its threads cannot spin while
another process is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

_SHOWN = 200  # letters of what a process printed before it died
_PATIENCE = 2.0  # seconds that a process may take to end by itself
_STOPS = sys.platform == "linux"  # where a process that is stopped ends with its parent


class CommandError(Exception):
    """A process could not obey a command. `facts` has the command as ``stage``, the reason, node and next step."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(facts["reason"])
        self.facts = facts


class CommandProcess:
    """A Python process that obeys the commands of a script. It never outlives the `with` block.

    Arrays go through files in `folder`, which is the script's only argument and is deleted at the end.

    Args:
        script: calls `child.main`.
        python: the interpreter.
        limit: the seconds that its commands may take in all.

    Example:
        >>> with CommandProcess(Path(child.__file__)) as process:
        ...     process.ask("open")
    """

    def __init__(self, script: Path, *, python: str = sys.executable, limit: float = 300.0) -> None:
        self._script, self._python = script, python
        self._limit, self._left = limit, limit
        self._busy = False
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._sent = "start"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="torchport-")))
        self._errors: IO[str] = self._stack.enter_context((self.folder / "errors").open("w+", errors="replace"))
        self._process = subprocess.Popen(
            [self._python, "-P", str(self._script), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        self._stack.callback(self._end)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            CommandError: the command failed, took too long, or the process died.
        """
        self.send(command, arguments)
        return self.receive()

    def send(self, command: str, arguments: Mapping[str, Any]) -> None:
        """Send a command and do not wait: several processes may work at once."""
        self._sent, self._busy = command, True
        self._signal("SIGCONT")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: there will be no answer
            self._process.stdin.write(json.dumps([command, arguments]) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for the answer to the last command.

        Raises:
            CommandError: the command failed, took too long, or the process died.
        """
        start = time.monotonic()
        try:
            line = self._answers.get(timeout=max(self._left, 0))
        except queue.Empty:
            self._process.kill()  # it would take the time of other processes
            raise CommandError(self._died(f"it takes longer than {self._limit:g} s")) from None
        if not line:
            raise CommandError(self._died(self._last_words()))
        self._signal("SIGSTOP")
        self._busy = False
        self._left -= time.monotonic() - start
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise CommandError(answer)
        return answer

    @property
    def alive(self) -> bool:
        """Check that the process can obey."""
        return self._process.poll() is None and not self._busy

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put("")

    def _signal(self, name: str) -> None:
        if _STOPS and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))

    def _died(self, reason: str) -> dict[str, Any]:
        return {"refused": "died", "stage": self._sent, "reason": reason}

    def _last_words(self) -> str:
        """Return why the process ended."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "the system killed it: out of memory"
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines()[-1:] or [""])[0][:_SHOWN]
        if code < 0:
            return f"it crashed ({signal.Signals(-code).name}) {last}".strip()
        return last or "it ended without a result"

    def _end(self) -> None:
        """End the process: one that is busy is killed, one that is idle ends when there are no more commands."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._signal("SIGKILL" if self._busy else "SIGCONT")
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0 if self._busy and not _STOPS else _PATIENCE)
        finally:  # also where Ctrl-C ends the wait
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._listener.join()
