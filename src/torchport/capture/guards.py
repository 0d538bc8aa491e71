"""Sizes at which torch.export's own assumptions do not hold.

While it runs the model on symbolic sizes, torch.export decides each condition on a size by the example and notes a
guard: ``s77 < 10``, ``Ne(Mod(s77, 7), 0)``. The graph is only known to be right where the guards hold, so the proof
asks at sizes where they do not: a guard that mattered is found out there, and its line is known.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from types import CodeType
from typing import Any

from torchport.capture.places import Site
from torchport.results import Dim

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
    """Sizes at which a guard does not hold."""

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
        for sizes in islice(_violations(guard.expression, symbols, example), 2):
            found.setdefault(tuple(sorted(sizes.items())), Challenge(sizes, guard.line))
    return tuple(found.values())[:_MOST]


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
    sizes = sorted(
        {*range(1, 65), *near, 128, 256, 512, 1024, 2048}, key=lambda n: (n > max(numbers, default=64) + 1, n)
    )
    for dim in dims:
        yield from ({dim.root: n} for n in sizes if n >= 1 and dim.allows(n) and n != example[dim.root])
    if len(dims) > 1:
        yield from ({d.root: n for d in dims} for n in sizes if n >= 1 and all(d.allows(n) for d in dims))
        yield {d.root: 64 if d.max is None else d.max for d in dims}
