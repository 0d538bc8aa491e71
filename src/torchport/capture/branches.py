"""Did a branch that a trace may have frozen ever go the other way?

A trace records the side of an `if` that the example took. Agreement on other values shows that the frozen side is right
only if some of them took the other side in PyTorch. This watches the lines PyTorch runs.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any


@contextmanager
def watch_lines(files: frozenset[str]) -> Iterator[set[tuple[str, int]]]:
    """Collect which lines of these files run."""
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None  # not this function's lines, but its calls
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def one_sided(place: str, runs: Sequence[set[tuple[str, int]]]) -> bool:
    """Whether an `if` whose condition is at `place` went the same way in all runs.

    Args:
        place: ``model.py:12``.
        runs: the lines each run went through.
    """
    path, _, line = place.rpartition(":")
    path = os.path.abspath(path)
    for first, last, body in _ifs(path):
        if first <= int(line) <= last:
            reached = [run for run in runs if (path, first) in run]
            return len({(path, body) in run for run in reached}) < 2
    return False


@cache
def _ifs(path: str) -> tuple[tuple[int, int, int], ...]:
    """For each `if` of a file the first and last line of its condition, and the first of its body."""
    try:
        with open(path) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ()  # no source to look at: a notebook's cell, a generated function
    return tuple(
        (n.test.lineno, n.test.end_lineno or n.test.lineno, n.body[0].lineno)
        for n in ast.walk(tree)
        if isinstance(n, ast.If) and n.body[0].lineno > (n.test.end_lineno or n.test.lineno)
    )
