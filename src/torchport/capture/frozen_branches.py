"""Lines at which a model turns tensors into Python values, and branches that a trace may have frozen."""

from __future__ import annotations

import ast
import dataclasses
import dis
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
# right only if some of them took the other side in PyTorch. This watches the instructions that PyTorch's run goes
# through, and at which lines a tensor is turned into a Python value: a condition on shapes alone does not do that, and
# is a matter of sizes. A condition went one way only if all jumps out of its part of the source end at one place. That
# of a `while` goes both ways in every run, so that the number of its rounds has to vary.

Line = tuple[str, int]
Jump = tuple[CodeType, int, int]
Span = tuple[int, int, int, int]  # first line and column, last line and column

_SKIPPED = frozenset({"NOP", "NOT_TAKEN", "TO_BOOL"})  # stand beside a jump, and are not the condition


@dataclasses.dataclass(frozen=True)
class Run:
    """The steps one run took from instruction to instruction, and the lines at which it looked at a tensor's value."""

    jumps: Counter[Jump] = dataclasses.field(default_factory=Counter)
    looks: set[Line] = dataclasses.field(default_factory=set)


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
    """Watch the steps through the functions of these files."""
    run = Run()
    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: _steps(frame, run) if frame.f_code.co_filename in files else None)
    try:
        with _Looks(files, run.looks):
            yield run
    finally:
        sys.settrace(before)


def _steps(frame: FrameType, run: Run) -> Callable[..., Any]:
    """The trace function of one call: counts each step out of a conditional jump, by the instruction before the jump.

    That one stands in the condition; to the jump, Python may give the position of the whole statement.
    """
    code, before, jumps = frame.f_code, -1, False
    names = _instructions(code)
    frame.f_trace_opcodes = True
    frame.f_trace_lines = False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal before, jumps
        name = names.get(frame.f_lasti, "")
        if event != "opcode" or name in _SKIPPED:
            return trace
        if jumps:
            run.jumps[code, before, frame.f_lasti] += 1
        jumps = "_IF_" in name  # POP_JUMP_IF_FALSE, and in some releases JUMP_FORWARD_IF_NONE and others
        before = before if jumps else frame.f_lasti
        return trace

    return trace


@cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


def one_sided(place: str, runs: Sequence[Run]) -> bool:
    """Check that a condition on a tensor's value, at `place`, was left by the same side in all runs.

    Args:
        place: ``model.py:12``.
        runs: what was seen of each run.
    """
    path, _, line = place.rpartition(":")
    path = os.path.abspath(path)
    tests = [(span, loops) for span, loops in _tests(path) if span[0] <= int(line) <= span[2]]
    return any(
        any((path, n) in run.looks for run in runs for n in range(span[0], span[2] + 1))
        and _undecided([_exits(path, span, run) for run in runs], loops=loops)
        for span, loops in tests
    )


def _undecided(exits: Sequence[dict[Any, int]], *, loops: bool) -> bool:
    reached = [found for found in exits if found]
    if loops:
        return len({tuple(sorted(found.values())) for found in reached}) < 2
    return len({place for found in reached for place in found}) < 2


def _exits(path: str, span: Span, run: Run) -> dict[Any, int]:
    """Return the instructions at which the run continued after the condition, with their counts."""
    found: dict[Any, int] = {}
    for (code, start, end), times in run.jumps.items():
        leaves = not _inside(code, end, span) or _instructions(code)[end].startswith("JUMP_")
        if leaves and code.co_filename == path and _inside(code, start, span):
            found[code, end] = found.get((code, end), 0) + times
    return found


def _inside(code: CodeType, offset: int, span: Span) -> bool:
    line, last_line, column, last_column = _positions(code)[offset // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return False
    return span[:2] <= (line, column) and (last_line, last_column) <= span[2:]


@cache
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    return list(code.co_positions())


@cache
def _tests(path: str) -> tuple[tuple[Span, bool], ...]:
    """The conditions of a file, and whether they are a loop's. Where one side raises, PyTorch has no answer to miss."""
    try:
        with open(path) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ()  # no source to look at: a notebook's cell, a generated function
    nodes = list(ast.walk(tree))
    tests = [(n.test, isinstance(n, ast.While)) for n in nodes if isinstance(n, (ast.IfExp, ast.While))]
    tests += [(n.test, False) for n in nodes if isinstance(n, ast.If) and not isinstance(n.body[0], ast.Raise)]
    tests += [(test, False) for n in nodes if isinstance(n, ast.comprehension) for test in n.ifs]
    return tuple(
        ((t.lineno, t.col_offset, t.end_lineno or t.lineno, t.end_col_offset or t.col_offset), loops)
        for t, loops in tests
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
