"""Record what a running program feeds its model, to be replayed on the other side.

Most reports of "accuracy dropped" are about other preprocessing. So the very tensors are saved that went in, next to
the model's answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import runpy
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchport.comparison.recorded_calls import Begun, SavedCalls, unwrapped
from torchport.errors import InputError, SourceError, did_you_mean
from torchport.results import Record
from torchport.torch_compat.parts import patched


@contextlib.contextmanager
def record(model: object, folder: str | os.PathLike[str], *, limit: int | None = None) -> Iterator[SavedCalls]:
    """Save the inputs and outputs of each call of `model` while the block runs; its answers stay as they are.

    Args:
        model: an `nn.Module`, compiled, scripted or plain.
        folder: where ``call_00001.npz`` and so on go; read them with `read_samples`.
        limit: save that many calls at most.

    Raises:
        SourceError: `model` is no module, so its calls cannot be seen.
        SaveError: the folder holds an earlier recording, or cannot be written.

    Example:
        >>> with record(model, "samples/") as saved:
        ...     evaluate(model)
        >>> saved.count
        32
    """
    if not isinstance(model, torch.nn.Module):
        raise SourceError(
            f"{type(model).__name__} is no nn.Module, so its calls cannot be seen",
            next_step="record the module inside it, or wrap the function in an nn.Module",
        )
    saved = SavedCalls(folder, limit)
    with contextlib.ExitStack() as undo:
        for handle in _hooks(model, saved):
            undo.callback(handle.remove)
        yield saved


def _hooks(model: torch.nn.Module, saved: SavedCalls) -> Iterator[Any]:
    """What the caller gives, before other hooks change it, and what the caller gets, after they did."""
    begun = threading.local()

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begun.__dict__.setdefault("calls", []).append(saved.begin(module, args, kwargs))

    def after(module: Any, args: Any, kwargs: Any, answer: Any) -> None:
        calls: list[Begun | None] = begun.__dict__.get("calls", [])
        if calls:
            saved.end(calls.pop(), answer)

    yield model.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    yield model.register_forward_hook(after, with_kwargs=True, always_call=True)


@dataclasses.dataclass(frozen=True)
class Recording(Record):
    """What came of recording a program.

    Attributes:
        folder: where the calls are.
        calls: how many were saved.
        model: the class whose calls they are.
        others: other modules the program itself called, and how often.
        exit_code: the program's own.
    """

    folder: str
    calls: int
    model: str
    others: Mapping[str, int]
    exit_code: int

    def __str__(self) -> str:
        if not self.calls:
            return (
                f"nothing was recorded: the program ended with exit code {self.exit_code} before it called {self.model}"
            )
        text = f"recorded {self.calls} call{'' if self.calls == 1 else 's'} of {self.model} → {self.folder}"
        rest = ", ".join(f"{name} ({count})" for name, count in self.others.items())
        return text + (f"\nnot recorded: {rest}; choose with --model" if rest else "")


def record_program(
    argv: Sequence[str], folder: str | os.PathLike[str], model: str | None = None, *, limit: int | None = None
) -> Recording:
    """Run a Python program as ``python`` would, and record the calls of its model.

    Args:
        argv: the program and its own arguments.
        folder: where the calls go.
        model: the model's class, ``Net`` or ``package.module.Net``. If not given, the first class the program itself
            calls (not from within another module) that has weights; losses and transforms have none.
        limit: save that many calls at most.

    Raises:
        SourceError: there is no such program.
        InputError: the program ended well but called no such module.

    Example:
        >>> record_program(["evaluate.py", "--split", "val"], "samples/").calls
        32
    """
    if not argv or not Path(argv[0]).exists():
        raise SourceError(f"there is no program '{argv[0] if argv else ''}'", next_step="give the path of a .py file")
    watch = _Watch(SavedCalls(folder, limit), model)
    with watch.watching():
        exit_code = _run(list(argv))
    if not watch.saved.count and exit_code == 0:
        raise watch.nothing()
    return Recording(str(folder), watch.saved.count, watch.chosen or model or "a model", watch.others(), exit_code)


class _Watch:
    """Sees every call of every module in this process, and saves those of one class."""

    def __init__(self, saved: SavedCalls, model: str | None) -> None:
        self.saved = saved
        self.model = model
        self.chosen = ""
        self._weighty = False
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._here = threading.local()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks will not do: torch's global ones do not see keyword arguments, and warn about compiled models."""

        def watched(plain: Any) -> Any:
            def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or getattr(self._here, "inside", False) or not self._is_wanted(module):
                    return plain(module, *args, **kwargs)
                return self._watched(plain, module, args, kwargs)

            return call

        with patched("Module.__call__", watched):
            yield

    def _watched(self, plain: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._here.inside = True
        begun, answer = None, None
        try:
            begun = self.saved.begin(module, args, kwargs) if self._choose(unwrapped(module)) else None
            answer = plain(module, *args, **kwargs)
            return answer
        finally:
            self._here.inside = False
            self.saved.end(begun, answer)

    def _is_wanted(self, module: Any) -> bool:
        """Without a class to look for every call counts that comes from no other module."""
        if self.model is None:
            return True
        classes = [f"{c.__module__}.{c.__qualname__}" for c in type(unwrapped(module)).__mro__]
        if any(name == self.model or name.endswith(f".{self.model}") for name in classes):
            return True
        self._calls[type(module).__name__] += 1
        return False

    def _choose(self, module: Any) -> bool:
        """Whether this call is to be saved. The first class with weights takes the place of one without."""
        name = type(module).__name__
        with self._lock:
            self._calls[name] += 1
            weighty = self.model is not None or next(iter(module.parameters()), None) is not None
            if not self.chosen or (weighty and not self._weighty):
                self.saved.drop()
                self.chosen, self._weighty = name, weighty
            return self.model is not None or name == self.chosen

    def others(self) -> dict[str, int]:
        """The other classes the program called itself."""
        return {} if self.model else {n: c for n, c in self._calls.items() if n != self.chosen}

    def nothing(self) -> InputError:
        if not self._calls:
            return InputError(
                "the program called no nn.Module", next_step="is it the program that runs the model, in this process?"
            )
        return InputError(
            f"the program called no module of class '{self.model}'",
            where=f"it called {', '.join(sorted(self._calls)[:8])}",
            next_step=did_you_mean(str(self.model), self._calls, "give one of these, or leave --model out", most=1),
        )


def _run(argv: list[str]) -> int:
    """The program's exit code. Its own failure is shown as Python shows it."""
    before = sys.argv, sys.path[:]
    program = Path(argv[0])
    sys.argv = argv
    sys.path[:1] = [str(program.resolve().parent if program.is_file() else program.resolve())]
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        return _code(end.code)
    except Exception as error:  # noqa: BLE001 - whatever the program dies of is shown, and makes its exit code
        _show(error, argv[0])
        return 1
    finally:
        sys.argv, sys.path[:] = before
    return 0


def _code(code: object) -> int:
    """As Python ends: nothing is 0, a number itself, and a text is shown and makes 1."""
    if code is None or isinstance(code, int):
        return int(code or 0)
    print(code, file=sys.stderr)
    return 1


def _show(error: Exception, program: str) -> None:
    """The traceback from the program's own first line on."""
    place = error.__traceback__
    while place is not None and not place.tb_frame.f_code.co_filename.startswith(program):
        place = place.tb_next
    traceback.print_exception(type(error), error, place)
