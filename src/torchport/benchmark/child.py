"""Run one candidate in a process of its own: open a model, run it on given inputs, and time it.

`python -P child.py folder` reads `request.json` and `feeds.npz` in the folder and writes `result.json` and
`outputs.npz`. Only numpy is imported before the candidate: the file also runs in an environment that has an older
ONNX Runtime and nothing of torchport.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_WARM_UP = 3  # runs that are not counted
_LEAST_RUNS = 5
_LENT = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # ml_dtypes', which .npz files do not hold

Arrays = dict[str, Any]
Run = Callable[[Arrays], list[Any]]
Opener = Callable[[], tuple[Run, dict[str, Any]]]


def save_arrays(folder: Path, stem: str, arrays: Arrays) -> None:
    """Write arrays by number, with their names and dtypes beside them."""
    plain = {
        str(n): a.view(f"u{a.dtype.itemsize}") if a.dtype.name in _LENT else a for n, a in enumerate(arrays.values())
    }
    np.savez(folder / f"{stem}.npz", **plain)
    kinds = [[name, array.dtype.name] for name, array in arrays.items()]
    (folder / f"{stem}.json").write_text(json.dumps(kinds))


def read_arrays(folder: Path, stem: str) -> Arrays:
    """Return what `save_arrays` wrote."""
    kinds = json.loads((folder / f"{stem}.json").read_text())
    with np.load(folder / f"{stem}.npz", allow_pickle=False) as stored:
        return {name: _restored(stored[str(n)], dtype) for n, (name, dtype) in enumerate(kinds)}


def _restored(array: Any, dtype: str) -> Any:
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


def measured(request: dict[str, Any], feeds: Arrays) -> tuple[dict[str, Any], list[Any]]:
    """Return the figures of a candidate and its outputs."""
    open_model = _KINDS[request["kind"]](request)
    before = _memory("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    start = time.perf_counter()
    run, facts = open_model()
    opened = time.perf_counter()
    outputs = run(feeds)
    first = time.perf_counter()
    times = _timed(run, feeds, request["seconds"]) if request["seconds"] else []
    peak = _memory("VmHWM")
    figures = {
        "load_seconds": opened - start,
        "first_seconds": first - opened,
        "latency_seconds": statistics.median(times) if times else None,
        "memory": peak - before if peak else None,
    }
    return {**facts, **figures}, outputs


def _timed(run: Run, feeds: Arrays, seconds: float) -> list[float]:
    for _ in range(_WARM_UP):
        run(feeds)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run(feeds)
        times.append(time.perf_counter() - start)
    return times


def _memory(field: str) -> int:
    """Return a figure of this process in bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{field}:")), 0)
    return 0


def _limit(memory: int | None) -> None:
    """End with the parent, be the first to go where memory runs out, and take no more than is allowed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _failure(error: BaseException) -> dict[str, Any]:
    """Return why a candidate failed, as far as the exception tells."""
    memory = isinstance(error, MemoryError) or any(w in str(error) for w in ("bad_alloc", "Failed to allocate memory"))
    lines = str(getattr(error, "what", error)).strip().splitlines()
    own = "" if hasattr(error, "what") else f"{type(error).__name__}: "
    return {
        "refused": type(error).__name__ if not memory else "MemoryError",
        "reason": "out of memory" if memory else own + (lines[0] if lines else "no reason given"),
        "node": getattr(error, "node", ""),
        "next_step": getattr(error, "next_step", None) or "",
    }


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    _limit(request["memory"])
    feeds = read_arrays(folder, "feeds")
    try:
        result, outputs = measured(request, feeds)
        save_arrays(folder, "outputs", {str(n): np.asarray(o) for n, o in enumerate(outputs)})
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its result
        result = _failure(error)
    (folder / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # an engine that fails while the interpreter ends has given its result


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    main(Path(sys.argv[1]))
