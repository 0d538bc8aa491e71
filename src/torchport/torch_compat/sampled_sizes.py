"""Long formulas of sizes, compared by their numbers at sample sizes.

A network of shifted windows pads to a multiple, divides, and halves, again and again. Torch carries the whole formula
into every size behind it, and asks sympy of each whether it equals another: minutes for a small network, as

    (h + (-h) % 7) // ((h + (-h) % 7) // 7)        which is 7

does not simplify. Here both formulas are computed at sample sizes. A long formula that gives at each of them what a
shorter one gave is replaced by the shorter one, and a long condition that has one answer at all of them has that
answer. One that has both answers depends on the sizes, and torch need not try to settle it. Short ones, and those with
numbers that only values tell, stay with torch. As for all that torch assumes of sizes, the proof runs the result at
other sizes.

A whole number that is computed with a quotient of sizes, `int(windows / (h * w / 4 / 4))`, which is the batch, does not
simplify however short it is. It is computed as Python does, in floats, at the sample sizes that the guards allow, and
replaced by the size that is the same at all of them.
"""

from __future__ import annotations

import contextlib
import math
import operator
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import sympy  # torch brings it along

from torchport.process import check_time
from torchport.torch_compat.parts import has, part, patched

LONG = 24  # a formula of more nodes is long
_COUNT = 128  # samples; guards leave some of them out
_FEWEST = 16  # samples that must be left for an answer
_LARGEST = 4096
_STEPS = (1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 96, 112, 128, 160, 224)  # keep what the example is a multiple of
_TIMES = 3  # that a size must grow by a step for the step to be allowed

Numbers = Sequence[Any]  # one for each sample, None where the formula has no value

_COMPUTE: dict[str, Callable[..., Any]] = {
    "Abs": abs,
    "Add": lambda *terms: sum(terms),
    "And": lambda *terms: all(terms),
    "CeilToInt": math.ceil,
    "CleanDiv": operator.floordiv,
    "Equality": operator.eq,
    "FloatTrueDiv": lambda a, b: float(a) / float(b),
    "FloorDiv": operator.floordiv,
    "FloorToInt": math.floor,
    "GreaterThan": operator.ge,
    "Identity": lambda a: a,
    "IntTrueDiv": operator.truediv,
    "LessThan": operator.le,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "ModularIndexing": lambda a, b, n: a // b % n,
    "Mul": lambda *factors: math.prod(factors),
    "Not": operator.not_,
    "Or": lambda *terms: any(terms),
    "Pow": lambda a, b: a**b if b >= 0 else Fraction(a) ** b,
    "PowByNatural": operator.pow,
    "PythonMod": operator.mod,
    "RoundToInt": round,
    "StrictGreaterThan": operator.gt,
    "StrictLessThan": operator.lt,
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "Unequality": operator.ne,
}


@contextlib.contextmanager
def sampled_sizes() -> Iterator[None]:
    """Compare long formulas of sizes by their numbers, for as long as torch captures or translates a model."""
    if not has(*_PATCHES, "ShapeEnv", "FloorDiv", "get_proxy_mode"):
        yield
        return
    with contextlib.ExitStack() as stack:
        for name, replacement in _PATCHES.items():
            stack.enter_context(patched(name, replacement))
        yield


def _with_short_formulas(plain: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, expr: Any, shape_env: Any, pytype: type, *others: Any, **named: Any) -> None:
        if shape_env is not None and pytype is int and isinstance(expr, sympy.Expr):
            expr = _samples(shape_env).shortest(expr)
        plain(self, expr, shape_env, pytype, *others, **named)

    return init


def _with_sampled_conditions(plain: Any) -> Any:
    def evaluate(self: Any, expr: Any, **options: Any) -> Any:
        check_time()
        if not any(options.values()) and isinstance(expr, sympy.logic.boolalg.Boolean) and is_long(expr):
            from_values = not expr.free_symbols <= self.backed_var_to_val.keys()
            # whether a number that only values tell equals a formula, no sample of it shows
            answers = set() if from_values and expr.has(sympy.Eq, sympy.Ne) else _samples(self).answers(expr)
            if len(answers) == 1:
                return sympy.true if answers.pop() else sympy.false
            if len(answers) > 1 and not from_values:
                return None
        return plain(self, expr, **options)

    evaluate.cache_clear = plain.cache_clear  # type: ignore[attr-defined]
    return evaluate


def _with_plain_quotients(plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A long quotient is not simplified: torch tries by sympy.simplify, which takes a second or more."""

    def floordiv(self: Any, other: Any) -> Any:
        env = self.shape_env
        if part("get_proxy_mode")() is not None or env is None or not (is_long(self.expr) or is_long(other.expr)):
            return plain(self, other)
        found = _samples(env).quotient(self.expr, other.expr)
        return type(self)(found[0], env, int, found[1]) if found is not None else plain(self, other)

    return floordiv


_PATCHES = {
    "SymNode.__init__": _with_short_formulas,
    "SymNode._int_floordiv": _with_plain_quotients,
    "ShapeEnv._maybe_evaluate_static": _with_sampled_conditions,
}


def is_long(formula: sympy.Basic) -> bool:
    """Check that a formula has more than a few nodes; the tree of a large one is not walked to the end."""
    waiting, count = [formula], 0
    while waiting and count <= LONG:
        count += 1
        waiting += waiting.pop().args
    return count > LONG


def has_quotient(formula: sympy.Basic) -> bool:
    """Check that a formula has a true division by a number that varies."""
    quotients = [f for f in formula.atoms(sympy.Function) if type(f).__name__ in ("FloatTrueDiv", "IntTrueDiv")]
    return any(quotient.args[1].free_symbols for quotient in quotients)


_known: weakref.WeakKeyDictionary[Any, Samples] = weakref.WeakKeyDictionary()


def _samples(env: Any) -> Samples:
    """Those of a capture. What torch replaces a symbol by changes the numbers of its formulas."""
    found = _known.get(env)
    if found is None or found.version != env._replacements_version_counter:
        found = _known[env] = Samples(env)
    return found


class _Table:
    """Formulas with their numbers, one for each of `count` sizes that each symbol is given."""

    def __init__(self, count: int, sizes: Callable[[Any], Numbers | None]) -> None:
        self._count = count
        self._sizes = sizes
        self._numbers: dict[Any, Numbers | None] = {}

    def give(self, formula: Any, numbers: Numbers) -> None:
        """Let a formula have numbers that were computed before."""
        self._numbers[formula] = numbers

    def numbers(self, formula: Any) -> Numbers | None:
        """The numbers of a formula; None if it has a symbol without a size in the example, or an unknown function."""
        numbers, waiting = self._numbers, [formula]
        while waiting:
            one = waiting[-1]
            missing = [a for a in one.args if a not in numbers] if one not in numbers else []
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if one not in numbers:
                numbers[one] = self._computed(one)
        return numbers[formula]

    def _computed(self, formula: Any) -> Numbers | None:
        if formula.is_Symbol:
            return self._sizes(formula)
        if formula.is_Rational:
            return [int(formula) if formula.is_Integer else Fraction(int(formula.p), int(formula.q))] * self._count
        if formula.is_Float:
            return [float(formula)] * self._count
        if formula in (sympy.true, sympy.false):
            return [formula == sympy.true] * self._count
        function = _COMPUTE.get(type(formula).__name__)
        given = [self._numbers[a] for a in formula.args]
        if function is None or not given:
            return None
        columns = [column for column in given if column is not None]
        return [_value(function, row) for row in zip(*columns, strict=True)] if len(columns) == len(given) else None


class Samples:
    """Formulas of one capture with their numbers at sample sizes.

    Where guards allow few of them, as in a network that takes multiples of 32 only, others are drawn that they allow.

    Example:
        >>> Samples(shape_env).shortest((h + (-h) % 7) // ((h + (-h) % 7) // 7))
        7
    """

    def __init__(self, env: Any) -> None:
        self._env: Any = weakref.proxy(env)
        self.version = env._replacements_version_counter
        self._steps: dict[Any, int] = {}  # the number that each symbol moves by, where guards allow no other sizes
        self._guards_read = 0
        self._start()

    def _start(self) -> None:
        """Forget all numbers."""
        self._table = _Table(_COUNT, self._sizes)
        self._shortest: dict[Any, Any] = {}
        self._first: dict[tuple[Any, ...], Any] = {}  # by numbers, the formula that had them first
        self._left = list(range(_COUNT))  # the samples that all guards allow
        self._of_one: set[int] = set()  # the samples at which some size is 1

    def shortest(self, formula: Any) -> Any:
        """Return the formula; for a long one the first formula of the same numbers, or the number if all are one."""
        if formula not in self._shortest:
            self._shortest[formula] = self._found(formula)
        return self._shortest[formula]

    def _found(self, formula: Any) -> Any:
        numbers = self._table.numbers(formula)
        if numbers is None or _COUNT - numbers.count(None) < _FEWEST:
            return formula
        if has_quotient(formula):
            return self._without_quotient(formula, numbers)
        different = {n for n in numbers if n is not None}
        if len(different) == 1 and isinstance(numbers[0], int) and is_long(formula):
            return sympy.Integer(numbers[0])
        first = self._first.setdefault(tuple(numbers), formula)
        return first if is_long(formula) else formula

    def _without_quotient(self, formula: Any, numbers: Numbers) -> Any:
        """A formula of the same numbers at all samples that the guards allow; this one if there is none."""
        self._read_guards()
        numbers = self._table.numbers(formula) or numbers
        left = [k for k in self._left if numbers[k] is not None]
        if len(left) < _FEWEST or len({numbers[k] for k in left}) == 1:
            return formula
        symbols = sorted((s for s in formula.free_symbols if not self._env.is_unbacked_symint(s)), key=str)
        for other in (*symbols, *self._first.values()):
            found = self._table.numbers(other)
            if found is not None and all(found[k] == numbers[k] for k in left):
                return other
        return formula

    def quotient(self, a: Any, b: Any) -> tuple[Any, int] | None:
        """Return a formula of a // b, and its number in the example; None if some sample has none."""
        above, below = self._table.numbers(a), self._table.numbers(b)
        if above is None or below is None:
            return None
        numbers = [_value(operator.floordiv, row) for row in zip(above, below, strict=True)]
        if numbers[0] is None or not (a.free_symbols | b.free_symbols <= self._env.backed_var_to_val.keys()):
            return None
        quotient = part("FloorDiv")(a, b, evaluate=False)
        self._table.give(quotient, numbers)
        return self.shortest(quotient), numbers[0]

    def answers(self, condition: Any) -> set[bool]:
        """Return the answers that a condition has at the samples: both where sizes decide, none if too few are left.

        One that differs at sizes of 1 alone is left to torch, which takes no size for 1.
        """
        self._read_guards()
        numbers = self._table.numbers(condition)
        found = {k: bool(numbers[k]) for k in self._left if numbers[k] is not None} if numbers is not None else {}
        if len(found) < _FEWEST:
            return set()
        answers = set(found.values())
        larger = {answer for k, answer in found.items() if k not in self._of_one}
        return answers if len(answers) == 1 or len(larger) > 1 else set()

    def _read_guards(self) -> None:
        """Leave out the samples that new guards do not allow, and draw others if few are left."""
        guards = [guard.expr for guard in self._env.guards]
        if len(guards) == self._guards_read:
            return
        if len(guards) < self._guards_read:  # those of a branch are forgotten behind it
            self._left, self._guards_read = list(range(_COUNT)), 0
        self._leave_out(guards[self._guards_read :])
        self._guards_read = len(guards)
        steps = self._steps_of(guards) if len(self._left) < _COUNT // 2 else self._steps
        if steps != self._steps:
            self._steps = steps
            formulas = list(self._first.values())
            self._start()
            for formula in formulas:
                self.shortest(formula)
            self._leave_out(guards)

    def _leave_out(self, guards: Sequence[Any]) -> None:
        for guard in guards:
            numbers = self._table.numbers(guard)
            if numbers is not None:
                self._left = [k for k in self._left if numbers[k]]

    def _steps_of(self, guards: Sequence[Any]) -> dict[Any, int]:
        """The smallest step of each symbol by which it can grow, beside the others' sizes in the example."""
        symbols = {s for guard in guards for s in guard.free_symbols if s in self._env.backed_var_to_val}
        found = {s: self._step(s, guards) for s in sorted(symbols, key=str)}
        return {s: step for s, step in found.items() if step > 1}

    def _step(self, symbol: Any, guards: Sequence[Any]) -> int:
        example = self._env.backed_var_to_val
        grown = [int(example[symbol]) + step * times for step in _STEPS for times in range(1, _TIMES + 1)]

        def sizes(other: Any) -> Numbers | None:
            if other == symbol:
                return grown
            return [int(example[other])] * len(grown) if other in example else None

        table = _Table(len(grown), sizes)
        columns = [column for column in map(table.numbers, guards) if column is not None]
        for place, step in enumerate(_STEPS):
            tried = range(place * _TIMES, (place + 1) * _TIMES)
            if all(column[k] for column in columns for k in tried):
                return step
        return 1

    def _sizes(self, symbol: Any) -> Numbers | None:
        """Sample sizes of a symbol: the example's, the smallest, some near the example's and some far away."""
        instead = self._env.replacements.get(symbol, symbol)
        if instead != symbol:
            return self._table.numbers(instead)
        allowed = self._env.var_to_range.get(symbol)
        if allowed is None or not symbol.is_integer:
            return None
        low = int(allowed.lower) if allowed.lower.is_Integer else 0
        low = 1 if low == 2 else low  # torch takes no size for 1, users do
        example = int(self._env.backed_var_to_val.get(symbol, low + 16))
        high = int(allowed.upper) if allowed.upper.is_Integer else max(_LARGEST, example)
        chance = random.Random(str(symbol))  # the same in every process
        one = self._steps.get(symbol, 1)
        low += (example - low) % one  # the smallest size that is whole steps away from the example's
        high = max(example, high - (high - low) % one)
        found = [example, *(min(low + n * one, high) for n in range(4))]
        while len(found) < _COUNT:
            far = chance.choice((64, 64, _LARGEST))
            near = example + chance.choice(_STEPS) * chance.randint(-4, 12) * one
            size = near if chance.random() < 0.7 else chance.randint(low, max(low, min(high, far * one)))
            found.append(min(max(size - (size - low) % one, low), high))
        self._of_one |= {k for k, size in enumerate(found) if size == 1 and symbol in self._env.backed_var_to_val}
        return found


def _value(function: Callable[..., Any], row: tuple[Any, ...]) -> Any:
    if None in row:
        return None
    try:
        return function(*row)
    except (ArithmeticError, ValueError):  # a division by zero: a size that the model does not reach
        return None
