"""Lines at which a model turns tensors into Python values, and branches that a trace may have frozen."""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.origins import Site, site_of_stack
from torchport.capture.reference import preserved
from torchport.capture.structure import Call

# Did a branch that a capture may have frozen ever go the other way?
#
# A trace records the side of an `if` that the example took. Agreement on other values shows that the frozen side is
# right only if some of them took the other side in PyTorch. This watches which pieces of the source PyTorch runs, by
# line and column, and at which lines a tensor is turned into a Python value: a condition on shapes alone does not do
# that, and is a matter of sizes.

Line = tuple[str, int]
Span = tuple[tuple[int, int], tuple[int, int]]  # line and column of the first character, and of the one after the last


@dataclasses.dataclass(frozen=True)
class Run:
    """The expressions one run went through, by file, and the lines at which it looked at a tensor's value."""

    spans: dict[str, set[Span]]
    looks: set[Line]

    def ran(self, path: str, piece: Span) -> bool:
        """Check that the run went through a piece of a file."""
        return any(piece[0] <= first and last <= piece[1] for first, last in self.spans.get(path, ()))


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
def watch_branches(files: frozenset[str]) -> Iterator[Run]:
    """Watch which expressions of these files run."""
    run = Run({path: set() for path in files}, set())

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None  # not this function's instructions, but its calls
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            span = _spans(frame.f_code)[frame.f_lasti // 2]
            if span is not None:
                run.spans[frame.f_code.co_filename].add(span)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with _Looks(files, run.looks):
            yield run
    finally:
        sys.settrace(before)


@cache
def _spans(code: CodeType) -> tuple[Span | None, ...]:
    """Where the expression of each instruction stands in the source."""
    return tuple(
        ((line, column), (last, end))
        if line is not None and last is not None and column is not None and end is not None
        else None
        for line, last, column, end in code.co_positions()
    )


def one_sided(place: str, runs: Sequence[Run]) -> bool:
    """Check that a branch on a tensor's value, its condition at `place`, went the same way in all runs.

    Args:
        place: ``model.py:12``.
        runs: what was seen of each run.
    """
    path, _, line = place.rpartition(":")
    path = os.path.abspath(path)
    branches = [(test, body) for test, body in _branches(path) if test[0][0] <= int(line) <= test[1][0]]
    for test, body in branches:
        looked = any((path, n) in run.looks for run in runs for n in range(test[0][0], test[1][0] + 1))
        if looked and len({run.ran(path, body) for run in runs if run.ran(path, test)}) < 2:
            return True
    return False


@cache
def _branches(path: str) -> tuple[tuple[Span, Span], ...]:
    """For each `if` of a file, statement or expression, where its condition and its first side stand."""
    try:
        with open(path) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ()  # no source to look at: a notebook's cell, a generated function
    found = [n for n in ast.walk(tree) if isinstance(n, (ast.If, ast.IfExp))]
    return tuple((_span(n.test), _span(n.body[0] if isinstance(n, ast.If) else n.body)) for n in found)


def _span(node: ast.stmt | ast.expr) -> Span:
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return (node.lineno, node.col_offset), end


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
