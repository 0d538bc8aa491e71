"""Start a candidate in a process of its own, wait for it within limits, and read what it gave."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torchport.benchmark import child
from torchport.tensors import Array

_SHOWN = 200  # letters of what a process printed before it died


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something that runs a model; plain data, which a child process is given.

    Attributes:
        label: its name in the table.
        kind: an engine of torchport, a PyTorch model, or the ONNX Runtime of another environment.
        model: an ONNX file; for a PyTorch model its source, ``model.py:Net``.
        engine: the engine's name.
        mode: of a PyTorch model: eager or compiled.
        python: the interpreter of the environment it runs in.
        threads: to compute with; its own choice if None.
        settings: the engine's own options.
        libraries: operator libraries, by path.
        operators: Python files that define operators.
        seed: for weights that a PyTorch model draws.
        trust: open a PyTorch file that runs code when it is loaded.
    """

    label: str
    kind: Literal["engine", "torch", "bare"]
    model: str
    engine: str = ""
    mode: str = ""
    python: str = sys.executable
    threads: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    seed: int = 0
    trust: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    Attributes:
        outputs: in the model's order; None if it failed.
        facts: version, findings and figures of one that ran; reason, node and next step of one that failed.
    """

    outputs: tuple[Array, ...] | None
    facts: Mapping[str, Any]


def run_candidate(
    candidate: Candidate,
    feeds: Mapping[str, Array],
    *,
    seconds: float = 0.5,
    limit: float = 300.0,
    memory: int | None = None,
) -> Outcome:
    """Run a candidate. Whatever happens to its process is its outcome.

    Args:
        candidate: what to run.
        feeds: the inputs by name.
        seconds: to measure for; 0 for one run.
        limit: the time it may take in all.
        memory: the bytes of address space it may take; None for no limit.
    """
    with tempfile.TemporaryDirectory(prefix="torchport-") as folder:
        place = Path(folder)
        request = {**dataclasses.asdict(candidate), "seconds": seconds, "memory": memory}
        (place / "request.json").write_text(json.dumps(request, default=str))
        child.save_arrays(place, "feeds", dict(feeds))
        problem = _finished([candidate.python, "-P", child.__file__, folder], limit)
        if not (place / "result.json").exists():
            return Outcome(None, {"refused": "died", "reason": problem or "it ended without a result"})
        facts = json.loads((place / "result.json").read_text())
        if "refused" in facts:
            return Outcome(None, facts)
        return Outcome(tuple(child.read_arrays(place, "outputs").values()), facts)


def _finished(command: Sequence[str], limit: float) -> str:
    """Wait for a process. Returns why it died; empty if it ended by itself. It never outlives this call."""
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=quiet)
    try:
        _, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return f"it takes longer than {limit:g} s"
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode == 0:
        return ""
    last = (errors or "").strip().splitlines()[-1:] or [""]
    if process.returncode == -signal.SIGKILL:
        return "the system killed it: out of memory"
    if process.returncode < 0:
        return f"it crashed ({signal.Signals(-process.returncode).name}) {last[0][:_SHOWN]}".strip()
    return last[0][:_SHOWN]
