"""How long a model takes with one thread and with the engine's own choice, each in a process of its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from torchport.benchmark.children import Candidate, run_candidate
from torchport.engines.registry import find_engine
from torchport.tensors import Array

_SECONDS = 0.3  # to measure each time
_TIMES = 2  # each, in turn
_LONGEST = 2.0  # seconds of a run beyond which it is not worth the wait


def times_by_threads(
    candidate: Candidate, feeds: Mapping[str, Array], run_seconds: float, say: Callable[[str], None]
) -> dict[int | None, tuple[float, ...]]:
    """Return the seconds of a run by number of threads, None for the engine's own choice, once for each measurement.

    It is empty where there is nothing to compare: one core, an engine without threads, a model that takes long, or one
    that a process of its own cannot open, because its operators are defined in this one.
    """
    if not find_engine(candidate.engine).takes_threads or (os.cpu_count() or 1) < 2 or run_seconds > _LONGEST:
        return {}
    say("measuring with 1 thread and with all")
    found: dict[int | None, tuple[float, ...]] = {}
    for threads in (1, None) * _TIMES:
        facts = run_candidate(dataclasses.replace(candidate, threads=threads), feeds, seconds=_SECONDS).facts
        latency = facts.get("latency_seconds")
        if latency is None:
            return {}
        found[threads] = (*found.get(threads, ()), latency)
    return found
