"""What can be asked of a model in a search for a fault: its numbers, whether it crashes, or a command of the user's.

Each check is a function of a model and its inputs that says whether the model fails. The model is looked at as a file,
as any user would open it: what an engine does to constant weights is part of what may be wrong.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

from torchport.comparison.tensor_cache import Recorded
from torchport.engines.session import open_session
from torchport.errors import EngineError, InputError, OptionError
from torchport.files import onnx_files
from torchport.inputs.samples import save_arrays
from torchport.numerics.check import check_output
from torchport.numerics.tolerance import Tolerance, tolerance
from torchport.tensors import FLOATS, Array, numpy_dtype

_SKIP = 125  # as for `git bisect run`: this one cannot be judged
_NOT_RUN = (126, 127)  # a shell's way to say that there is no such program
_MISTAKE = 2
_REFUSED = 1
_CHILD = "from torchport.comparison.reduce_checks import attempt; attempt()"


class Numbers:
    """Fails where an engine's answers are not those of another engine, or of another model's tensors of the same names.

    Args:
        engine: what is looked into.
        against: the engine that is right, or a model's recorded tensors.
        limit: how far apart answers may be; None for what their dtype allows.
        libraries: operator libraries you trust, by path.

    Example:
        >>> reduce(model, Numbers("mine", against="theirs"), inputs={"x": x})
    """

    def __init__(
        self,
        engine: str,
        *,
        against: str | Recorded,
        limit: Tolerance | None = None,
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self._engine, self._against = engine, against
        self._limit, self._libraries = limit, libraries

    def __call__(self, model: ir.Model, feeds: Mapping[str, Array]) -> bool:
        expected = self.expected(model, feeds)
        with as_file(model) as path, np.errstate(all="ignore"):
            answers = open_session(path, self._engine, libraries=self._libraries).run(feeds)
        return any(not self._agree(expected[n], answers[n], _coarsest(model)) for n in expected)

    def expected(self, model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """What the model should answer.

        Raises:
            InputError: the model that is right has no tensor of an output's name.
        """
        names = [str(v.name) for v in model.graph.outputs]
        if isinstance(self._against, str):
            with np.errstate(all="ignore"):  # numbers that overflow may be what is looked for
                return open_session(model, self._against, libraries=self._libraries).run(feeds)
        unknown = [n for n in names if not self._against.knows(n)]
        if unknown:
            raise InputError(
                f"the model to compare with has no tensor '{unknown[0]}'", next_step="give one with the same names"
            )
        return self._against.values(names)

    def _agree(self, right: Array, answer: Array, precision: str | None) -> bool:
        if right.dtype.name in FLOATS and answer.dtype.name in FLOATS:
            answer = answer.astype(right.dtype, copy=False)  # of a model in half precision
        limit = self._limit if self._limit and right.dtype.name in FLOATS else tolerance(right.dtype.name, precision)
        return check_output("", right, answer, limit).ok


class Crash:
    """Fails where an engine refuses the model, ends the process, or does not come to an end.

    It runs in a process of its own, which may die.

    Args:
        engine: what is looked into.
        timeout: seconds after which it counts as failing.
        expect: a text that what the engine says must have, so that the search does not slip to another fault.
        libraries: operator libraries you trust, and .py files that define operators.

    Example:
        >>> reduce("model.onnx", Crash("mine"))
    """

    def __init__(
        self,
        engine: str,
        *,
        timeout: float | None = None,
        expect: str = "",
        libraries: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self._engine, self._timeout, self._expect = engine, timeout, expect
        self._libraries = [str(library) for library in libraries]

    def __call__(self, model: ir.Model, feeds: Mapping[str, Array] | None = None) -> bool:
        with as_file(model) as path:
            inputs = path.with_name("inputs.npz")
            if feeds is not None:
                save_arrays(inputs, feeds)
            call = [str(path), str(inputs) if feeds is not None else "", self._engine, *self._libraries]
            code, said = run([sys.executable, "-c", _CHILD, *call], self._timeout)
        if code == _MISTAKE:
            raise InputError(said.strip().splitlines()[0] if said.strip() else "the model cannot be asked")
        return code != 0 and self._expect in said


class Command:
    """Fails where a command of the user's exits with another code than 0.

    As for `git bisect run`, 125 is "cannot be judged", which counts as passing.

    Args:
        command: ``python test.py {model} {inputs}``: `{model}` becomes the path of an .onnx, `{inputs}` that of an .npz
            with its inputs. No shell reads it.
        timeout: seconds after which it counts as failing.
        expect: a text that the command must print, so that the search does not slip to another fault.

    Raises:
        OptionError: the command does not mention {model}, or cannot be run.

    Example:
        >>> reduce("model.onnx", Command("python test.py {model}"))
    """

    def __init__(self, command: str, *, timeout: float | None = None, expect: str = "") -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise OptionError(
                f"the check's quotes do not match: {error}", where=command, next_step="close the quotes"
            ) from error
        if not any("{model}" in word for word in self._words):
            raise OptionError(
                "the check does not mention {model}", where=command, next_step="write: python test.py {model} {inputs}"
            )
        self.needs_inputs = any("{inputs}" in word for word in self._words)
        self._timeout, self._expect = timeout, expect

    def __call__(self, model: ir.Model, feeds: Mapping[str, Array] | None = None) -> bool:
        with as_file(model) as path:
            inputs = path.with_name("inputs.npz")
            if feeds is not None:
                save_arrays(inputs, feeds)
            words = [w.replace("{model}", str(path)).replace("{inputs}", str(inputs)) for w in self._words]
            code, said = run(words, self._timeout)
        if code in _NOT_RUN:
            raise OptionError(
                "the check could not be run",
                where=said.strip()[:200] or shlex.join(self._words),
                next_step="run the command by hand with the model's path in its place",
            )
        return code not in (0, _SKIP) and self._expect in said


def run(words: Sequence[str], timeout: float | None) -> tuple[int, str]:
    """Run a command to its end or to the timeout: its exit code and what it said. Its own children end with it."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise OptionError(f"'{words[0]}' cannot be run: {error.strerror}", next_step="correct the check") from error
    with process:
        try:
            said, _ = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    return process.returncode, said


def attempt() -> None:
    """In a process of its own: open the model of the first argument, run it on the arrays of the second.

    The third is the engine, the rest are libraries. Exits 1 if the engine fails, 2 if it was not asked properly.
    """
    path, inputs, engine, *libraries = sys.argv[1:]
    try:
        for file in libraries:
            if file.endswith(".py"):
                from torchport.capture.sources import import_file

                import_file(Path(file))
        session = open_session(path, engine, libraries=[f for f in libraries if not f.endswith(".py")])
        if inputs:
            dtypes = {i.name: i.dtype for i in session.inputs}
            session.run({n: _typed(a, dtypes.get(n, "")) for n, a in load_arrays(inputs).items()})
    except EngineError as error:
        print(error)
        sys.exit(_REFUSED)
    except InputError as error:
        print(error)
        sys.exit(_MISTAKE)


def _typed(array: Array, dtype: str) -> Array:
    """numpy's files have no bfloat16: it comes back as bytes without a type."""
    return array.view(numpy_dtype(dtype)) if array.dtype.kind == "V" and dtype else array


def _coarsest(model: ir.Model) -> str | None:
    """The coarsest float dtype the model computes in, which its answers are only as good as."""
    values = [*model.graph.inputs, *model.graph.initializers.values(), *(v for n in model.graph for v in n.outputs)]
    found = {v.dtype.numpy().name for v in values if v.dtype is not None and v.dtype.is_floating_point()}
    return next((name for name in ("bfloat16", "float16") if name in found), None)


@contextmanager
def as_file(model: ir.Model) -> Iterator[Path]:
    """The model as a file, for as long as it is looked at."""
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        yield onnx_files.save(model, Path(folder) / "model.onnx", check=False)


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
