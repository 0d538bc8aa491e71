"""A worker: one candidate in a process of its own that obeys commands.

`python -P child.py folder` reads one command a line from standard input, as JSON, and answers each with one line.
Arrays go through files in the folder. Only numpy is imported before the candidate: the file also runs in an environment
that has an older ONNX Runtime and nothing of torchport.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

_LENT = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # ml_dtypes', which .npz files do not hold
_STEADY = 0.97  # a window of runs that is less than 3% faster than the one before ends the warm-up
_LEAD_IN = 0.15  # of the time of a turn: runs that are not counted, since the caches hold another process's data

Arrays = dict[str, Any]
Run = Callable[[Arrays], list[Any]]
Opener = Callable[[], tuple[Run, dict[str, Any]]]


def save_arrays(folder: Path, stem: str, arrays: Arrays) -> None:
    """Write arrays by number, with their names and dtypes beside them."""
    np.savez(folder / f"{stem}.npz", **{str(n): _stored(array) for n, array in enumerate(arrays.values())})
    kinds = [[name, array.dtype.name] for name, array in arrays.items()]
    (folder / f"{stem}.json").write_text(json.dumps(kinds))


def read_arrays(folder: Path, stem: str) -> Arrays:
    """Return what `save_arrays` wrote."""
    kinds = json.loads((folder / f"{stem}.json").read_text())
    with np.load(folder / f"{stem}.npz", allow_pickle=False) as stored:
        return {name: _restored(stored[str(n)], dtype) for n, (name, dtype) in enumerate(kinds)}


def _stored(array: Any) -> Any:
    """Return the array as an .npz holds it without pickles."""
    if array.dtype.kind == "O":  # texts of engines
        return array.astype(str)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.name in _LENT else array


def _restored(array: Any, dtype: str) -> Any:
    if array.dtype.kind == "U":
        return array.astype(object)
    if dtype not in _LENT:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, dtype))


# Each kind of candidate: what it needs is imported, and a function returned that opens the model.


def _engine(request: dict[str, Any]) -> Opener:
    """An ONNX model in an engine of torchport."""
    from torchport.engines.registry import find_engine
    from torchport.engines.session import open_session

    for path in request["operators"]:
        from torchport.capture.sources import import_file

        import_file(Path(path))
    engine = find_engine(request["engine"])
    version = engine.capabilities().version
    threads = request["threads"] if engine.takes_threads else None

    def open_model() -> tuple[Run, dict[str, Any]]:
        options = {"threads": threads, "options": request["settings"], "libraries": request["libraries"]}
        session = open_session(request["model"], request["engine"], **options)
        facts = {"version": version, "findings": [str(finding) for finding in session.findings]}
        return lambda feeds: list(session.run(feeds).values()), facts

    return open_model


def _torch(request: dict[str, Any]) -> Opener:
    """A PyTorch model, eager or compiled."""
    from torchport.benchmark.torch_candidate import open_torch

    arguments = [request[name] for name in ("model", "mode", "seed", "threads")]
    return lambda: open_torch(*arguments, trust=request["trust"])


def _bare(request: dict[str, Any]) -> Opener:
    """An ONNX model in the ONNX Runtime of this environment, without torchport."""
    import onnxruntime as ort

    def open_model() -> tuple[Run, dict[str, Any]]:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if request["threads"] is not None:
            options.intra_op_num_threads = request["threads"]
        for path in request["libraries"]:
            options.register_custom_ops_library(path)
        session = ort.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
        return lambda feeds: session.run(None, feeds), {"version": ort.__version__, "findings": []}

    return open_model


_KINDS: dict[str, Callable[[dict[str, Any]], Opener]] = {"engine": _engine, "torch": _torch, "bare": _bare}


# Timing


def timed(call: Callable[[], Any], seconds: float, least: int = 1) -> list[float]:
    """Call a function for some seconds, and so often at least. Returns the time of each call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def warmed_up(call: Callable[[], Any], most: float) -> float:
    """Call a function until it gets no faster, or for `most` seconds. Returns the median of the last calls."""
    end = time.perf_counter() + most
    before = float("inf")
    while True:
        median = statistics.median(timed(call, most / 20, least=2))
        if median >= _STEADY * before or time.perf_counter() >= end:
            return median
        before = median


def under_load(calls: list[Callable[[], Any]], seconds: float, least: int) -> list[list[float]]:
    """Call functions from threads of their own, all at once. Returns the times of each thread's calls."""
    times: list[list[float]] = [[] for _ in calls]
    errors: list[BaseException] = []
    ready = threading.Barrier(len(calls))

    def client(n: int) -> None:
        try:
            ready.wait()
            times[n] = timed(calls[n], seconds, least)
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that answers
            errors.append(error)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return times


# Memory


def _memory(field: str) -> int:
    """Return a figure of this process in bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{field}:")), 0)
    return 0


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def limit_process(memory: int | None) -> None:
    """End with the parent, be the first to go where memory runs out, and take no more than is allowed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


# Commands


class Obeying:
    """The candidate of this process. Each public method is a command; it returns what is answered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._feeds: dict[str, Arrays] = {}
        self._last: list[list[Any]] = []  # the outputs of each client's last run
        self._before = 0

    def prepare(self, request: dict[str, Any], memory: int | None) -> dict[str, Any]:
        """Import what the candidate needs; several processes may do so at once."""
        limit_process(memory)
        self._opener = _KINDS[request["kind"]](request)
        return {}

    def open(self) -> dict[str, Any]:
        """Open the model."""
        self._before = _memory("VmRSS")
        _forget_peak()
        start = time.perf_counter()
        self._run, facts = self._opener()
        seconds = time.perf_counter() - start
        gc.freeze()  # what was imported is not looked through again
        return {**facts, "load_seconds": seconds, "memory": self._peak()}

    def run(self, feeds: str) -> dict[str, Any]:
        """Run once on the arrays of that name."""
        self._feeds[feeds] = read_arrays(self._folder, feeds)
        start = time.perf_counter()
        self._last = [self._run(self._feeds[feeds])]
        return {"first_seconds": time.perf_counter() - start, "memory": self._peak()}

    def warm_up(self, feeds: str, most: float) -> dict[str, Any]:
        """Run until it gets no faster."""
        given = self._feeds[feeds]
        return {"seconds": warmed_up(lambda: self._run(given), most)}

    def measure(self, feeds: str, seconds: float, least: int = 1, clients: int = 1) -> dict[str, Any]:
        """Time runs, from several threads if there are several clients."""
        given = self._feeds[feeds]
        self._last = [[] for _ in range(clients)]
        calls = [self._call(n, given) for n in range(clients)]
        gc.disable()
        try:
            timed(calls[0], _LEAD_IN * seconds)
            start = time.perf_counter()
            times = [timed(calls[0], seconds, least)] if clients == 1 else under_load(calls, seconds, least)
            wall = time.perf_counter() - start
        finally:
            gc.enable()
        return {"times": [round(t, 9) for each in times for t in each], "wall": wall, "memory": self._peak()}

    def _call(self, client: int, feeds: Arrays) -> Callable[[], None]:
        def call() -> None:
            self._last[client] = self._run(feeds)

        return call

    def outputs(self) -> dict[str, Any]:
        """Write the outputs of each client's last run."""
        for client, arrays in enumerate(self._last):
            named = {str(n): np.asarray(array) for n, array in enumerate(arrays)}
            save_arrays(self._folder, f"outputs{client}", named)
        return {"clients": len(self._last)}

    def _peak(self) -> int | None:
        peak = _memory("VmHWM")
        return peak - self._before if peak else None


COMMANDS = ("prepare", "open", "run", "warm_up", "measure", "outputs")


def _failure(error: BaseException, command: str) -> dict[str, Any]:
    """Return why a candidate failed, as far as the exception tells."""
    memory = isinstance(error, MemoryError) or any(w in str(error) for w in ("bad_alloc", "Failed to allocate memory"))
    lines = str(getattr(error, "what", error)).strip().splitlines()
    own = "" if hasattr(error, "what") else f"{type(error).__name__}: "
    return {
        "refused": type(error).__name__ if not memory else "MemoryError",
        "stage": command,
        "reason": "out of memory" if memory else own + (lines[0] if lines else "no reason given"),
        "node": getattr(error, "node", ""),
        "next_step": getattr(error, "next_step", None) or "",
    }


def obey(candidate: object, names: Sequence[str], commands: TextIO, answers: TextIO) -> None:
    """Answer commands, which are methods of an object, until there are no more."""
    for line in commands:
        command, arguments = json.loads(line)
        if command not in names:
            break
        try:
            answer = getattr(candidate, command)(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its result
            answer = _failure(error, command)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(kind: Callable[[Path], object], names: Sequence[str]) -> None:
    """Be the process of a `CommandProcess`: make the object that obeys, in the folder of the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model or an engine prints is no answer
    obey(kind(Path(sys.argv[1])), names, sys.stdin, answers)
    os._exit(0)  # an engine that fails while the interpreter ends has given its result


if __name__ == "__main__":
    main(Obeying, COMMANDS)
