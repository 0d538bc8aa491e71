"""Passes applied in a process of their own, within limits of time and memory; one that dies is named with its node."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torchport.benchmark.command_process import CommandError, CommandProcess
from torchport.errors import InputError, RefusedError

if TYPE_CHECKING:
    import onnx_ir as ir

SCRIPT = Path(__file__).with_name("pass_child.py")
JOURNAL = "journal"  # the file that has the name of the node at work
_SECONDS_PER_GIB = 120.0
_MEMORY = 4 << 30  # bytes of address space beside three times the weights


@dataclasses.dataclass(frozen=True)
class Step:
    """A pass as it is applied: by its module, with a limit to the number of its changes, if any."""

    module: str
    most: int | None = None


class PassError(Exception):
    """A pass raised, took too long, or ended its process.

    Attributes:
        reason: what happened.
        node: the node that was worked on; empty if none was noted.
    """

    def __init__(self, reason: str, node: str) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


class PassProcess:
    """A process with a model that passes change. One that dies is started again, with the steps that went well.

    Args:
        source: the ONNX file.
        options: what passes are told; and ``fix``.
        seconds: the time that all steps of one process may take, for a small model; two minutes more for each GiB.
        modules: of passes that will be applied, to import beforehand.

    Example:
        >>> with PassProcess(path, options, seconds=60) as process:
        ...     process.apply(Step("torchport.optimization.passes.dead_code"))
        ...     process.model(original)
    """

    def __init__(
        self, source: Path, options: Mapping[str, Any], *, seconds: float, modules: Sequence[str] = ()
    ) -> None:
        self._source, self._options, self._modules = source, dict(options), tuple(modules)
        self._bytes = _bytes_of(source)
        self._seconds = seconds + _SECONDS_PER_GIB * self._bytes / 2**30
        self._stack = contextlib.ExitStack()
        self._done: list[Step] = []
        self._opened = False

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._stack.close()
        self._process = self._stack.enter_context(CommandProcess(SCRIPT, limit=self._seconds))
        arguments = {
            "source": str(self._source),
            "options": self._options,
            "memory": _MEMORY + 3 * self._bytes,
            "modules": self._modules,
        }
        self._process.send("open", arguments)
        self._opened = False

    def _ready(self) -> None:
        """Wait until the model is open."""
        if self._opened:
            return
        try:
            self._process.receive()
        except CommandError as error:
            raise _not_opened(error) from error
        self._opened = True

    def apply(self, step: Step) -> dict[str, Any]:
        """Apply a pass and return what it did: nodes before and after, changes, seconds, the last node, patterns.

        Raises:
            PassError: it failed; the model is as before.
        """
        self._ready()
        try:
            found = self._process.ask("apply", module=step.module, most=step.most)
        except CommandError as error:
            node = read_journal(self._process.folder / JOURNAL)
            if not self._process.alive:
                self._start()
                self._replay()
            raise PassError(error.facts["reason"], node) from error
        if found.get("changed"):
            self._done.append(step)
        return found

    def apply_all(self, modules: Sequence[str]) -> list[dict[str, Any]]:
        """Apply passes one after the other; return what each did, or under ``failed`` and ``node`` why it did nothing.

        Raises:
            PassError: the process ended or took too long; the model is as before all of them.
        """
        self._ready()
        try:
            answers: list[dict[str, Any]] = self._process.ask("apply_all", modules=list(modules))["answers"]
        except CommandError as error:
            self._start()
            self._replay()
            raise PassError(error.facts["reason"], "") from error
        self._done += [Step(m) for m, found in zip(modules, answers, strict=True) if found.get("changed")]
        return answers

    def go_to(self, steps: Sequence[Step]) -> None:
        """Make the model what these steps make of the original."""
        self._ready()
        self._process.ask("reset")
        self._done = list(steps)
        self._replay()

    def model(self, original: ir.Model) -> ir.Model:
        """Return the model as it is now; the weights that are unchanged are those of the original, in this process."""
        from torchport.optimization.model_transfer import receive

        self._ready()
        self._process.ask("send")
        return receive(self._process.folder, original)

    def _replay(self) -> None:
        self._ready()
        for step in self._done:
            self._process.ask("apply", module=step.module, most=step.most)


def _bytes_of(source: Path) -> int:
    """Return the bytes of a model and of all that its folder has: its weights may lie in any file there."""
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in source.parent.iterdir() if file.is_file())
    return 0


def _not_opened(error: CommandError) -> Exception:
    """Return the error for a model that could not be opened or whose dimensions could not be fixed."""
    facts = error.facts
    kind = InputError if facts["refused"] == "InputError" else RefusedError
    return kind(str(facts["reason"]), next_step=facts.get("next_step") or None)


def read_journal(path: Path) -> str:
    """Return the name of the node that was worked on last."""
    return path.read_bytes().rstrip(b"\0").decode(errors="replace") if path.exists() else ""
