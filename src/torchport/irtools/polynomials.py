"""Numbers that may depend on a model's dynamic dimensions: ``1.2M·batch``.

Polynomials with exact coefficients. sympy could do it, but takes minutes for ten thousand nodes; it reads the
expressions found in shapes, each once.

    >>> str(Amount.symbol("batch") * 1_200_000)
    '1.2M·batch'
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from torchport.terminal import human, human_bytes

Power = tuple[str, int]
Terms = dict[tuple[Power, ...], int | Fraction]

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_TERMS = 3


class Amount:
    """A polynomial in dynamic dimensions.

    Attributes:
        terms: the coefficient of each product of dimensions.
        exact: False where a rounded division was taken for an exact one. It is right at sizes that are multiples of
            the strides, and near elsewhere.
    """

    __slots__ = ("exact", "terms")

    def __init__(self, terms: Terms, *, exact: bool = True) -> None:
        self.terms = {k: v if type(v) is int else _whole(v) for k, v in terms.items() if v}
        self.exact = exact

    @classmethod
    def symbol(cls, name: str) -> Amount:
        return cls({((name, 1),): 1})

    @classmethod
    def of(cls, value: int | Fraction | Amount) -> Amount:
        return value if isinstance(value, Amount) else cls({(): value})

    def __add__(self, other: int | Fraction | Amount) -> Amount:
        if type(other) is int and other == 0:
            return self  # sums begin with it, thousands of times in a large model
        right = Amount.of(other)
        terms = dict(self.terms)
        for key, value in right.terms.items():
            terms[key] = terms.get(key, 0) + value
        return Amount(terms, exact=self.exact and right.exact)

    def __mul__(self, other: int | Fraction | Amount) -> Amount:
        if type(other) is int and other == 1:
            return self  # products begin with it
        if not isinstance(other, Amount):
            return Amount({key: value * other for key, value in self.terms.items()}, exact=self.exact)
        terms: Terms = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                key = _joined(a, b)
                terms[key] = terms.get(key, 0) + x * y
        return Amount(terms, exact=self.exact and other.exact)

    def __sub__(self, other: int | Fraction | Amount) -> Amount:
        return self + Amount.of(other) * -1

    def __rsub__(self, other: int | Fraction) -> Amount:
        return self * -1 + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Amount:
        return (self * Fraction(1, other)).rounded()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, Fraction, Amount)) and self.terms == Amount.of(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def rounded(self, *, up: bool = False) -> Amount:
        """Rounded down to a whole number, as if every dimension were a multiple of what it is divided by."""
        whole = all(type(value) is int for value in self.terms.values())
        if whole:
            return self
        constant = self.terms.get((), 0)
        terms = {**self.terms, (): math.ceil(constant) if up else math.floor(constant)}
        return Amount(terms, exact=self.exact and not self.symbols)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dimensions it depends on."""
        return tuple(dict.fromkeys(name for key in self.terms for name, _ in key))

    def at(self, **sizes: int) -> int | Amount:
        """Its value at the given sizes; an amount still where some are not given."""
        total = Amount({}, exact=self.exact)
        for key, value in self.terms.items():
            known = math.prod(sizes[name] ** power for name, power in key if name in sizes)
            total = total + Amount({tuple(p for p in key if p[0] not in sizes): value * known})
        return int(total.terms.get((), 0)) if not total.symbols else Amount(total.terms, exact=self.exact)

    def number(self, assumed: int) -> int:
        """Its value with every dimension `assumed`: to compare two amounts."""
        return int(sum(value * assumed ** sum(p for _, p in key) for key, value in self.terms.items()))

    def text(self, *, of_bytes: bool = False) -> str:
        """For people: rounded coefficients, the largest terms first."""
        shown = human_bytes if of_bytes else human
        ordered = sorted(self.terms.items(), key=_rank)
        parts = [_term(shown(float(v)), k) for k, v in ordered[:_MOST_TERMS]]
        more = [f"{len(ordered) - _MOST_TERMS} smaller terms"] if len(ordered) > _MOST_TERMS else []
        text = " + ".join(parts + more).replace("+ -", "- ") or shown(0)
        return text if self.exact else f"≈ {text}"

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def json_form(self) -> dict[str, Any]:
        """The exact terms, ``{"batch*height^2": 128}``, beside the text for people."""
        terms = {"*".join(n if p == 1 else f"{n}^{p}" for n, p in k) or "1": v for k, v in self.terms.items()}
        return {
            "text": self.text(),
            "exact": self.exact,
            "terms": {k: v if isinstance(v, int) else float(v) for k, v in terms.items()},
        }


Size = int | Amount


def product(sizes: Iterable[Size]) -> Size:
    """All sizes multiplied."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def number(size: Size, assumed: int) -> int:
    return size if isinstance(size, int) else size.number(assumed)


def _whole(value: int | Fraction) -> int | Fraction:
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def _joined(a: tuple[Power, ...], b: tuple[Power, ...]) -> tuple[Power, ...]:
    if not a or not b:
        return a or b
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted(powers.items()))


def _rank(term: tuple[tuple[Power, ...], int | Fraction]) -> tuple[int, float]:
    powers, coefficient = term
    return -sum(power for _, power in powers), -abs(float(coefficient))


def _term(coefficient: str, powers: tuple[Power, ...]) -> str:
    plain = coefficient == "1" and powers
    return "·".join([*([] if plain else [coefficient]), *map(_powered, powers)])


def _powered(power: Power) -> str:
    name, times = power
    shown = name if name.replace("_", "").replace(".", "").replace(":", "").isalnum() else f"({name})"
    return shown + (str(times).translate(_SUPERSCRIPTS) if times > 1 else "")
