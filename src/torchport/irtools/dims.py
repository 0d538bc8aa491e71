"""Dimensions of a model: their names, expressions of them, renaming, substitution and evaluation.

Files of other people call dimensions ``?``, ``a/b/c``, ``batch size`` or ``2*n``. Such a text is a name. It is
arithmetic only where all names in it are dimensions of the same model: ``2*n`` beside an input ``[n, 3]``.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any

import onnx_ir as ir

from torchport.irtools.metadata import DIMS
from torchport.irtools.polynomials import Amount, Size
from torchport.irtools.traversal import all_values
from torchport.results import TensorInfo

_LONGEST = 1000  # characters of a dimension worth reading
_GENERATED = "unk__"  # onnx's and tf2onnx's prefix of names for sizes that nobody knows
_PLACEHOLDERS = ("none", "null", "any", "unk", "unknown", "dynamic", "undefined")

IDENTIFIER = re.compile(r"[^\W\d][\w.]*")
_CALLED = re.compile(r"\s*\(")


class Dims:
    """The names of a model's dynamic dimensions. They decide how to read the texts in its shapes.

    Args:
        inputs: the texts in the shapes of the model's inputs.
        inner: the texts in its other shapes.
        roots: names that occur in expressions of the inputs only, as ``half`` in ``2*half``.

    Example:
        >>> Dims(["n", "2*n", "a/b"]).symbols("2*n"), Dims(["2*n"]).symbols("2*n")
        ({'n'}, {'2*n'})
    """

    def __init__(self, inputs: Iterable[str], inner: Iterable[str] = (), roots: Iterable[str] = ()) -> None:
        texts = set(inputs)
        plain = {text for text in texts if not names_in(text)} | set(roots)
        self._inputs = plain | {text for text in texts if not names_in(text) <= plain}
        self._known = self._inputs | {text for text in inner if IDENTIFIER.fullmatch(text)}

    @classmethod
    def of(cls, model: ir.Model, roots: Iterable[str] = ()) -> Dims:
        """Return the dimensions of a model, with further names that are to be seen in expressions."""
        inputs = {text for value in model.graph.inputs for text in texts_of(value.shape)}
        inner = {text for value in all_values(model) for text in texts_of(value.shape)}
        return cls(inputs, inner, [*roots_in(model), *roots])

    @classmethod
    def of_inputs(cls, infos: Iterable[TensorInfo], roots: Iterable[str] = ()) -> Dims:
        """Return the dimensions of a model whose inputs alone are known."""
        return cls({d for info in infos for d in info.shape or () if isinstance(d, str)}, roots=roots)

    def is_name(self, text: str) -> bool:
        """Check that a text is the name of a dimension, not an expression of others."""
        names = names_in(text)
        return text in self._known or not names or not names <= self._known

    def is_of_inputs(self, text: str) -> bool:
        """Check that a text is a dimension of the inputs, or an expression of such."""
        return self.symbols(text) <= self._inputs

    def symbols(self, text: str) -> set[str]:
        """Return the names in an expression; a name itself otherwise."""
        return {text} if self.is_name(text) else set(names_in(text))

    def size(self, text: str, sizes: Mapping[str, int]) -> Size:
        """Return the size that a text amounts to.

        It is exact, rounded divisions included, when `sizes` has every dimension in it.
        """
        if text in sizes:
            return sizes[text]
        if self.is_name(text):
            return Amount.symbol(text)
        found = evaluated(text, sizes) if names_in(text) <= set(sizes) else text
        if isinstance(found, int):
            return found
        amount = _read(text)
        return amount.at(**sizes) if sizes else amount

    def evaluated(self, text: str, sizes: Mapping[str, int]) -> int | str:
        """Return the size of a text whose names all have sizes, else its expression with those that are known."""
        if text in sizes or self.is_name(text):
            return sizes.get(text, text)
        return evaluated(text, sizes)

    def renamed(self, text: str, names: Mapping[str, str]) -> str:
        """Return a name or an expression with other names in it."""
        return names.get(text, text) if text in names or self.is_name(text) else _with_names(text, names)


def texts_of(shape: ir.Shape | None) -> list[str]:
    """Return the names and expressions in a shape."""
    return [d.value for d in shape or () if isinstance(d, ir.SymbolicDim) and d.value]


def roots_in(model: ir.Model) -> list[str]:
    """Return the names that only expressions of the inputs have, as the export has written them down."""
    try:
        names = json.loads(model.metadata_props.get(DIMS, "[]"))
    except ValueError:
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def dim_names(model: ir.Model) -> set[str]:
    """Return the names of a model's dimensions, also those that occur in expressions only."""
    dims = Dims.of(model)
    return {name for v in all_values(model) for name in dims_in(v.shape, dims)}


def dims_in(shape: ir.Shape | None, dims: Dims) -> set[str]:
    """Return the names of dimensions in a shape."""
    return {name for text in texts_of(shape) for name in dims.symbols(text)}


# --- names that say nothing -------------------------------------------------------------------------------------------


def is_placeholder(text: str) -> bool:
    """Check that a text only says that a size is unknown: ``?``, ``-1``, ``None``. Two of it need not be one size."""
    return text.lower() in _PLACEHOLDERS or not any(c.isalpha() for c in text)


def is_generated(text: str | None) -> bool:
    """Check that a program made a name up for a size that it did not know: ``unk__12``."""
    return text is not None and text.startswith(_GENERATED)


def input_dims(inputs: Iterable[tuple[str, Iterable[int | str | None]]]) -> dict[tuple[str, int], str]:
    """Return a name for each dynamic axis of a model's inputs, by input and axis.

    An axis without a name is called ``x:0``, and so are those that share a placeholder.
    """
    dynamic = [
        ((name, axis), dim)
        for name, shape in inputs
        for axis, dim in enumerate(shape)
        if dim is None or isinstance(dim, str)
    ]
    count = Counter(dim for _, dim in dynamic)
    return {
        place: f"{place[0]}:{place[1]}" if dim is None or (is_placeholder(dim) and count[dim] > 1) else dim
        for place, dim in dynamic
    }


# --- arithmetic -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str]:
    """Return the names in a text that reads as arithmetic; none for any other text.

    Example:
        >>> names_in("floor(h/2) + w"), names_in("batch size"), names_in("batch")
        (frozenset({'h', 'w'}), frozenset(), frozenset())
    """
    expression = _expression(text)
    return frozenset() if expression is None else frozenset(str(s) for s in expression.free_symbols)


def evaluated(text: str, sizes: Mapping[str, int]) -> int | str:
    """Return the size of an expression whose names all have sizes, else the expression with those that are known."""
    if text in sizes:
        return sizes[text]
    try:
        found = ir.SymbolicDim(text).evaluate(sizes) if names_in(text) else text
    except (ValueError, TypeError, ArithmeticError):
        return text
    return found if isinstance(found, (int, str)) else str(found.value)


@functools.lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """Return what sympy makes of a text; None if it is no expression, or one that could take for ever."""
    if len(text) > _LONGEST or "**" in text or IDENTIFIER.fullmatch(text):
        return None
    try:
        import sympy

        dim = ir.SymbolicDim(text)
        dim.free_symbols()
        return dim._expr if isinstance(dim._expr, sympy.Expr) else None
    except Exception:  # noqa: BLE001 - any text may be the name of a dimension
        return None


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


def _with_names(text: str, names: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        return match.group() if _CALLED.match(text, match.end()) else names.get(match.group(), match.group())

    return IDENTIFIER.sub(one, text)


def free_roots(texts: Collection[str]) -> list[str]:
    """Return the names that occur in expressions among the texts, and nowhere by themselves: ``half`` of ``2*half``."""
    return sorted({name for text in texts for name in names_in(text)} - set(texts))


# --- shapes -----------------------------------------------------------------------------------------------------------


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
