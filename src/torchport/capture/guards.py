"""Sizes at which torch.export's own assumptions do not hold.

While it runs the model on symbolic sizes, torch.export decides each condition on a size by the example and notes a
guard: ``s77 < 10``, ``Ne(Mod(s77, 7), 0)``. The graph is only known to be right where the guards hold, so the proof
asks at sizes where they do not: a guard that mattered is found out there, and its line is known.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import sympy  # torch brings it along

from torchport.capture.places import Site
from torchport.records import Dim

_MOST = 10  # sizes asked for, however many guards there are
_FARTHEST = 4096
_WORDS = {
    "FloorDiv": lambda a, b: sympy.floor(a / b),
    "CleanDiv": lambda a, b: a / b,
    "PythonMod": sympy.Mod,
    "Mod": sympy.Mod,
    "ToFloat": lambda a: a,
    "TruncToInt": sympy.floor,
    "FloatTrueDiv": lambda a, b: a / b,
    "IntTrueDiv": lambda a, b: a / b,
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
    try:
        condition = sympy.sympify(text, locals={**_WORDS, **{n: sympy.Symbol(n, integer=True) for n in names}})
    except (sympy.SympifyError, TypeError, SyntaxError, AttributeError):
        return  # a form of torch's own that sympy does not read
    numbers = [int(n) for n in re.findall(r"(?<!\w)\d+", text) if int(n) <= _FARTHEST]
    for moved in _moves([symbols[n] for n in names], numbers, example):
        sizes = {**example, **moved}
        values = {sympy.Symbol(n, integer=True): symbols[n].size(sizes[symbols[n].root]) for n in names}
        if _fails(condition, values):
            yield moved


def _fails(condition: Any, values: Mapping[Any, int]) -> bool:
    try:
        return bool(condition.subs(values) == sympy.false)
    except (ArithmeticError, TypeError):
        return False  # the condition has no meaning at these sizes: a division by zero, a comparison with NaN


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
