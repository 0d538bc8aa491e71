"""Sizes at which torch.export's own assumptions do not hold.

While it runs the model on symbolic sizes, torch.export decides each condition on a size by the example and notes a
guard: ``s77 < 10``, ``Ne(Mod(s77, 7), 0)``. The graph is only known to be right where the guards hold, so the proof
asks at sizes where they do not: a guard that mattered is found out there, and its line is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import linecache
import logging
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from torchport.capture.origins import Site, is_own_file, is_user_file, line_of_frame, site_of_stack
from torchport.errors import FixedDimensionError
from torchport.process import silence
from torchport.results import Dim
from torchport.torch_compat.error_texts import GUARD_ADDED
from torchport.torch_compat.shape_env import (
    guard_log,
    guessed_conditions,
    is_truth_of_number,
    other_at_one,
    statically_known_true,
    watch_conditions,
)


class _Guards(logging.Handler):
    """Notes the guards torch.export adds: it logs them while the user's code is on the stack."""

    def __init__(self, end_at: re.Pattern[str] | None) -> None:
        super().__init__(logging.INFO)
        self.guards: list[Guard] = []
        self._end_at = end_at

    def emit(self, record: logging.LogRecord) -> None:
        match = GUARD_ADDED.match(record.getMessage())
        if match:
            # no name for the frame: it would hold itself, and with it tensors that torch.export then finds alive
            guard = Guard(match[1], line_of_frame(sys._getframe()), site_of_stack(sys._getframe()))
            if guard not in self.guards:
                self.guards.append(guard)
            if self._end_at is not None and self._end_at.fullmatch(guard.expression):
                raise UnwantedGuardError(guard.expression, where=guard.line)


class UnwantedGuardError(FixedDimensionError):
    """Ends a capture at a guard for which it would be made once more."""


@contextmanager
def watch_guards(end_at: re.Pattern[str] | None = None) -> Iterator[list[Guard]]:
    """Collect the guards on sizes that torch.export adds, each with the user's line. All else torch logs is dropped.

    Args:
        end_at: a guard with which there is no need to go on.

    Raises:
        UnwantedGuardError: torch added such a guard.
    """
    handler = _Guards(end_at)
    _active.append(handler)
    try:
        with guard_log(handler):
            yield handler.guards
    finally:
        _active.remove(handler)


_active: list[_Guards] = []
_EMPTY = "no size is 0"


def note_settled(condition: Any) -> None:
    """Note a condition on sizes that torch settled as it was asked, as it takes it that no size is 0."""
    settled = isinstance(condition, torch.SymBool) and any(
        map(statically_known_true, (condition, torch.sym_not(condition)))
    )
    if settled and _active:
        _active[-1].guards.append(Guard(_EMPTY, line_of_frame(sys._getframe()), site_of_stack(sys._getframe())))


UNREAD_GUARDS = "feature off: reading the guards of a capture; the proof has fewer sizes to ask at"


@functools.cache
def reads_guards() -> bool:
    """Check that `watch_guards` reads the guard of a small model, once a process.

    A capture without guards and a log that is not understood look the same otherwise.
    """
    with silence(), watch_guards() as guards:
        torch.export.export(_Known(), (torch.ones(3),), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
    return any("10" in guard.expression for guard in guards)


class _Known(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] < 10 else x


_MOST = 10  # sizes asked for, however many guards there are
_FARTHEST = 4096
_WORDS: dict[str, Callable[..., Any]] = {  # torch's and sympy's, as they print them
    "Eq": operator.eq,
    "Ne": operator.ne,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "PythonMod": operator.mod,
    "Mod": operator.mod,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "TruncToFloat": math.trunc,
    "ToFloat": lambda a: a,
    "FloatTrueDiv": lambda a, b: Fraction(a) / b,
    "IntTrueDiv": lambda a, b: Fraction(a) / b,
    "sqrt": math.sqrt,
    "Not": operator.not_,
}


@dataclasses.dataclass(frozen=True)
class Guard:
    """A condition on symbolic sizes, and the user's line that asked it."""

    expression: str
    line: str
    site: Site | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Challenge:
    """Sizes at which a guard does not hold; no sizes if those are too large to try."""

    sizes: Mapping[str, int]
    line: str


def challenges(
    guards: Sequence[Guard], symbols: Mapping[str, Dim], example: Mapping[str, int]
) -> tuple[Challenge, ...]:
    """For each guard the nearest sizes, within the dimensions' bounds, at which it does not hold.

    Args:
        guards: what torch.export noted.
        symbols: torch's symbols, each with the dimension it stands for.
        example: the size of each root dimension in the example.
    """
    found: dict[tuple[tuple[str, int], ...], Challenge] = {}
    for guard in guards:
        empty = ({d.root: 0} for d in symbols.values() if guard.expression == _EMPTY and d.allows(0))
        for sizes in (*empty, *islice(_violations(guard.expression, symbols, example), 2)):
            found.setdefault(tuple(sorted(sizes.items())), Challenge(sizes, guard.line))
    far = {g.line: Challenge({}, g.line) for g in guards if g.line and _is_far(g.expression)}
    return (*tuple(found.values())[:_MOST], *far.values())


def doubtful_lines(guards: Sequence[Guard], symbols: Mapping[str, Dim], example: Mapping[str, int]) -> set[str]:
    """The lines of all guards that do not hold at some of the sizes that are looked at."""
    doubted = (g for g in guards if next(_violations(g.expression, symbols, example), None) is not None)
    return {g.line for g in doubted}


def settled_otherwise(guards: Sequence[Guard], symbols: Mapping[str, Dim], example: Mapping[str, int]) -> list[Guard]:
    """The guards of conditions that the model's code asks, and to which the example's sizes have the other answer.

    A capture at larger sizes took the wrong side there.
    """
    sizes = {name: dim.size(example[dim.root]) for name, dim in symbols.items() if dim.root in example}
    found: list[Guard] = []
    for guard in guards:
        condition = _compiled(guard.expression, list(sizes))
        if condition is not None and _fails(condition, sizes) and is_condition(guard):
            found.append(guard)
    return found


def is_condition(guard: Guard) -> bool:
    """Check that the code asks a condition there: torch notes guards for operators too, which may not matter."""
    site = guard.site
    return site is not None and linecache.getline(site.codes[0].co_filename, site.line).lstrip().startswith(_ASKING)


_ASKING = ("if ", "elif ", "while ")


def _is_far(expression: str) -> bool:
    """Check that a guard compares with a number so large that no case tries the other side."""
    return any(int(n) > _FARTHEST for n in re.findall(r"(?<!\w)\d+", expression))


def _violations(text: str, symbols: Mapping[str, Dim], example: Mapping[str, int]) -> Iterator[dict[str, int]]:
    names = [n for n in symbols if re.search(rf"\b{n}\b", text)]
    condition = _compiled(text, names)
    if condition is None:
        return
    numbers = [int(n) for n in re.findall(r"(?<!\w)\d+", text) if int(n) <= _FARTHEST]
    for moved in _moves([symbols[n] for n in names], numbers, example):
        sizes = {**example, **moved}
        if _fails(condition, {n: symbols[n].size(sizes[symbols[n].root]) for n in names}):
            yield moved


def _compiled(text: str, names: Sequence[str]) -> CodeType | None:
    """A guard as Python reads it: sympy takes a hundred times as long to put numbers into one. None if it is of words
    or symbols that are not known here."""
    if "~" in text:
        return None  # not what it is to a truth of Python's
    try:
        code = compile(text, "<guard>", "eval")
    except SyntaxError:
        return None  # a form of torch's own
    return code if {*code.co_names} <= {*_WORDS, *names} else None


def _fails(condition: CodeType, values: Mapping[str, int]) -> bool:
    try:
        return not eval(condition, {"__builtins__": {}, **_WORDS}, dict(values))
    except (ArithmeticError, ValueError):
        return False  # the condition has no meaning at these sizes: a division by zero, the root of a negative number


def _moves(dims: Sequence[Dim], numbers: Sequence[int], example: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes to look at: each dimension alone, smallest first, then all together."""
    near = {n + d for n in numbers for d in (-1, 0, 1)}
    looked_at = {*range(1, 65), *near, 128, 256, 512, 1024, 2048}
    by_root = {dim.root_size(n) for dim in dims if not dim.allows(1) for n in (*range(1, 65), *near)}  # multiples
    looked_at |= {n for n in by_root if n is not None and n <= _FARTHEST}
    sizes = sorted(looked_at, key=lambda n: (n > max(numbers, default=64) + 1, n))
    for dim in dims:
        yield from ({dim.root: n} for n in sizes if n >= 1 and dim.allows(n) and n != example[dim.root])
    if len(dims) > 1:
        yield from ({d.root: n for d in dims} for n in sizes if n >= 1 and all(d.allows(n) for d in dims))
        yield {d.root: 64 if d.max is None else d.max for d in dims}


@contextlib.contextmanager
def watch_ones() -> Iterator[list[Guard]]:
    """Collect such conditions as guards, each with the user's line, while a model is captured."""
    found: list[Guard] = []

    def decided(condition: torch.SymBool, answer: bool) -> None:
        frame = _asking(sys._getframe(2))
        if is_user_file(frame.f_code.co_filename) and other_at_one(condition):
            text = str(condition.node.expr) if answer else f"Not({condition.node.expr})"
            guard = Guard(text, line_of_frame(frame), site_of_stack(frame))
            if guard not in found:
                found.append(guard)

    with watch_conditions(decided):
        yield found


def _asking(frame: FrameType) -> FrameType:
    """Where a condition is asked; the truth of a number is one that torch asks for it."""
    return frame.f_back if is_truth_of_number(frame) and frame.f_back else frame


# Conditions that only the running model knows.
#
# A capture stops at the first. To find the next ones in the same run it goes on with a guess, as if such numbers were
# small; what it gives after that is not used.

_MOST_GUESSES = 8  # at one line: a loop that such a condition ends would not end


@dataclasses.dataclass(frozen=True)
class Guess:
    """A condition that was guessed: torch's error, and the user's line."""

    error: Exception
    line: str
    site: Site


@contextlib.contextmanager
def guessing() -> Iterator[list[Guess]]:
    """Guess conditions of the user's code that only the running model knows, and collect them."""
    found: list[Guess] = []

    def goes_on(error: Exception) -> bool:
        frame = _asking_user(sys._getframe(2))
        site = site_of_stack(frame) if frame is not None else None
        if frame is None or site is None or sum(g.site == site for g in found) >= _MOST_GUESSES:
            return False
        found.append(Guess(error, line_of_frame(frame), site))
        return True

    with guessed_conditions(goes_on):
        yield found


def _asking_user(frame: FrameType | None) -> FrameType | None:
    """The user's frame in which a condition is asked, maybe through functions of ours; None if torch asks it."""
    while frame is not None and (is_own_file(frame.f_code.co_filename) or is_truth_of_number(frame)):
        frame = frame.f_back
    return frame if frame is not None and is_user_file(frame.f_code.co_filename) else None
