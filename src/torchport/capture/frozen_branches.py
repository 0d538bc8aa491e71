"""Lines at which a model turns tensors into Python values, and branches that a trace may have frozen."""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.origins import Site, site_of_stack
from torchport.capture.reference import preserved
from torchport.capture.structure import Call

# Did a branch that a trace may have frozen ever go the other way?
#
# A trace records the side of an `if` that the example took. Agreement on other values shows that the frozen side is
# right only if some of them took the other side in PyTorch. This watches the lines PyTorch runs, and at which of them a
# tensor is turned into a Python value: a condition on shapes alone does not do that, and is a matter of sizes.

Line = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Run:
    """The lines one run went through, and those at which it looked at a tensor's value."""

    lines: set[Line]
    looks: set[Line]


class _Looks(TorchFunctionMode):
    """Notes the line at which a tensor becomes a Python value."""

    _NAMES = frozenset({"__bool__", "__float__", "__int__", "__index__", "item", "tolist"})

    def __init__(self, files: frozenset[str], looks: set[Line]) -> None:
        super().__init__()
        self._files = files
        self._looks = looks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self._NAMES:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename not in self._files:
                frame = frame.f_back
            if frame is not None:
                self._looks.add((frame.f_code.co_filename, frame.f_lineno))
        return func(*args, **(kwargs or {}))


@contextmanager
def watch_lines(files: frozenset[str]) -> Iterator[Run]:
    """Watch the lines of these files."""
    run = Run(set(), set())

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None  # not this function's lines, but its calls
        if event == "line":
            run.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with _Looks(files, run.looks):
            yield run
    finally:
        sys.settrace(before)


def one_sided(place: str, runs: Sequence[Run]) -> bool:
    """Whether an `if` on a tensor's value, its condition at `place`, went the same way in all runs.

    Args:
        place: ``model.py:12``.
        runs: what was seen of each run.
    """
    path, _, line = place.rpartition(":")
    path = os.path.abspath(path)
    for first, last, body in _ifs(path):
        if first <= int(line) <= last:
            looked = any((path, n) in run.looks for run in runs for n in range(first, last + 1))
            reached = [run.lines for run in runs if (path, first) in run.lines]
            return looked and len({(path, body) in lines for lines in reached}) < 2
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


# Where a model turns tensors into Python values while it runs: lines a capture will stumble over, all at once.

_LOOKS = frozenset({"__bool__", "__float__", "__int__", "__index__"})


class _LookSites(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Any, Site] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _LOOKS:
            site = site_of_stack(sys._getframe(1))
            if site is not None:
                self.sites.setdefault((id(site.codes[0]), site.line), site)
        return func(*args, **(kwargs or {}))


def sites_looked_at(call: Call, tensors: tuple[torch.Tensor, ...]) -> list[Site]:
    """Run the model, and give the places where it looked at a tensor's value."""
    with preserved(call.target), _LookSites() as looks:
        call(*(t.clone() for t in tensors))
    return list(looks.sites.values())
