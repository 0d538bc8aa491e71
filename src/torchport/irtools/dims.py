"""Dimension expressions: the names in them, renaming, substitution and evaluation."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import onnx_ir as ir

from torchport.irtools.polynomials import Amount, Size
from torchport.irtools.traversal import all_values

_LONGEST = 1000  # characters of a dimension worth reading


def size_of(text: str, sizes: Mapping[str, int]) -> Size:
    """What a dimension's name or expression (``(height//2) + 1``) amounts to.

    It is exact, rounded divisions included, when `sizes` has every dimension in it.
    """
    if text in sizes:
        return sizes[text]
    names = _names(text)
    if names and all(name in sizes for name in names):
        value = ir.SymbolicDim(text).evaluate({name: sizes[name] for name in names})
        if isinstance(value, int):
            return value
    amount = _read(text)
    return amount.at(**sizes) if sizes else amount


# --- reading ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """What sympy makes of it; None if it is no expression, or one that could take for ever."""
    if len(text) > _LONGEST or "**" in text or text.isidentifier():
        return None
    try:
        import sympy

        dim = ir.SymbolicDim(text)
        dim.free_symbols()
        return dim._expr if isinstance(dim._expr, sympy.Expr) else None
    except Exception:  # noqa: BLE001 - any text may be the name of a dimension
        return None


@functools.lru_cache(maxsize=4096)
def _names(text: str) -> frozenset[str]:
    expression = _expression(text)
    return frozenset() if expression is None else frozenset(str(s) for s in expression.free_symbols)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Amount:
    expression = _expression(text)
    return Amount.symbol(text) if expression is None else _from_sympy(expression)


def _from_sympy(expression: Any) -> Amount:
    import sympy

    if isinstance(expression, (sympy.Integer, sympy.Rational)):
        return Amount.of(Fraction(int(expression.p), int(expression.q)))
    if isinstance(expression, (sympy.Add, sympy.Mul)):
        parts = [_from_sympy(argument) for argument in expression.args]
        join = Amount.__add__ if isinstance(expression, sympy.Add) else Amount.__mul__
        return functools.reduce(join, parts)
    if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and 0 < expression.exp < 16:
        return functools.reduce(Amount.__mul__, [_from_sympy(expression.base)] * int(expression.exp))
    if isinstance(expression, (sympy.floor, sympy.ceiling)):
        return _from_sympy(expression.args[0]).rounded(up=isinstance(expression, sympy.ceiling))
    if isinstance(expression, sympy.Mod) and expression.args[1].is_Integer:
        rest = _from_sympy(expression.args[0]).terms.get((), 0)
        return Amount({(): rest % int(expression.args[1])}, exact=False)
    return Amount.symbol(str(expression))


IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
_CALLED = re.compile(r"\s*\(")


def dim_names(model: ir.Model) -> set[str]:
    """Names of dimensions, also those that occur in expressions only."""
    return {name for v in all_values(model) if v.shape is not None for name in dims_in(v.shape)}


def dims_in(shape: ir.Shape) -> set[str]:
    """The names of dimensions in a shape."""
    texts = {d.value for d in shape if isinstance(d, ir.SymbolicDim) and d.value}
    return {name for text in texts for name in symbols(text)}


def symbols(text: str) -> set[str]:
    """Return the names in a dimension's expression; a text that is no expression is a name itself.

    Example:
        >>> symbols("floor(h/2) + w")
        {'h', 'w'}
    """
    if IDENTIFIER.fullmatch(text):
        return {text}
    found = {m.group() for m in IDENTIFIER.finditer(text) if not _CALLED.match(text, m.end())}
    is_expression = re.fullmatch(r"[\w.\s()+\-*/%,]+", text) and not re.search(r"[\w.]\s+[\w.]|^[^(]*,", text)
    return found if found and is_expression else {text}


def evaluated(text: str, sizes: Mapping[str, int]) -> int | str:
    """Return the size of a dimension whose names all have sizes, else its expression with those that are known."""
    if text in sizes:
        return sizes[text]
    try:
        found = ir.SymbolicDim(text).evaluate(sizes)
    except (ValueError, TypeError):
        return text  # no expression, only a name that looks like one
    return found if isinstance(found, int) else str(found.value)


def dim_with(text: str, names: Mapping[str, str]) -> str:
    """A dimension's name or expression with other names in it."""
    if text in names:
        return names[text]

    def one(match: re.Match[str]) -> str:
        return match.group() if _CALLED.match(text, match.end()) else names.get(match.group(), match.group())

    return IDENTIFIER.sub(one, text)


def plain_dims(shape: Iterable[int | str | ir.SymbolicDim | None]) -> list[int | str | None]:
    """Return the dimensions of a shape as numbers, names, and None for those that nobody knows."""
    return [d.value if isinstance(d, ir.SymbolicDim) else d for d in shape]


def change_dims(value: ir.Value, change: Callable[[str], str | int]) -> bool:
    """Exchange the symbolic dimensions of a value; whether any is another now. Its shape may be shared: it gets one."""
    if value.shape is None:
        return False
    dims = [d if isinstance(d, int) or d.value is None else change(d.value) for d in value.shape]
    same = all(a == b for a, b in zip(dims, value.shape, strict=True))
    if not same:
        value.shape = ir.Shape(dims, denotations=[value.shape.get_denotation(n) for n in range(len(dims))])
    return not same
