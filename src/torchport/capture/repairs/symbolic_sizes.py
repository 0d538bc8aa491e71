"""Sizes that are turned into numbers: `int(n * 0.5)`, `math.sqrt(n)`, `torch.div(n, 2, rounding_mode="floor")`.

Python insists that `int` gives an int, so torch.export has to settle the size there, and the dimension is fixed to the
example's; and what comes out of a tensor is a value to it, on which no size may depend. While this repair holds,

- the modules of the model's own packages see names of ours: an `int` and a `float` that leave a symbolic size symbolic
  and are Python's for anything else, and a `math` whose functions do the same;
- a tensor that was made of sizes remembers what it stands for, see `sized_tensors.py`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchport.capture.repairs.repair import capture_repair
from torchport.capture.repairs.sized_tensors import SQUARE_ROOT, SizedTensors

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NOT_THE_MODELS = {"torch", "torchport", "builtins", *sys.stdlib_module_names}


def _needs_symbolic_sizes(error: Exception) -> bool:
    return "was fixed to" in str(error) or "data-dependent" in str(error)


@capture_repair("sizes kept symbolic through int(), math and tensors", after=_needs_symbolic_sizes)
@contextlib.contextmanager
def symbolic_sizes(target: Any) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(SizedTensors())
        for names in _namespaces(target):
            stack.enter_context(_shadowed(names))
        yield True


def _namespaces(target: Any) -> list[dict[str, Any]]:
    """The global names of every loaded module of the packages that the model's classes come from."""
    parts = target.modules() if isinstance(target, torch.nn.Module) else [target]
    kinds = [base for part in parts for base in type(part).__mro__]
    owners = {str(getattr(kind, "__module__", "")).partition(".")[0] for kind in [*kinds, target]} - _NOT_THE_MODELS
    # a copy of the table: a module may be imported meanwhile
    return [vars(m) for name, m in list(sys.modules.items()) if m is not None and name.partition(".")[0] in owners]


@contextlib.contextmanager
def _shadowed(names: dict[str, Any]) -> Iterator[None]:
    """One module that sees our names instead of Python's."""
    ours = {name: value for name, value in _BUILTINS.items() if name not in names}
    theirs = {name: value for name, value in names.items() if type(value) in _FUNCTION_KINDS and value in _MATH}
    if names.get("math") is math:
        theirs["math"] = math
    names.update(ours)
    names.update({name: _Math() if value is math else _MATH[value] for name, value in theirs.items()})
    try:
        yield
    finally:
        for name in ours:
            del names[name]
        names.update(theirs)


class _Numbers(type):
    """What `isinstance(x, int)` asks: the answer is Python's."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__mro__[1]

    def __hash__(cls) -> int:
        return hash(cls.__mro__[1])


class _Int(int, metaclass=_Numbers):
    def __new__(cls, *given: Any, **named: Any) -> Any:
        given = _out_of_tensor(given)
        return torch.sym_int(given[0]) if _symbolic(given) else int(*given, **named)


class _Float(float, metaclass=_Numbers):
    def __new__(cls, *given: Any) -> Any:
        given = _out_of_tensor(given)
        return torch.sym_float(given[0]) if _symbolic(given) else float(*given)


def _out_of_tensor(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (given[0].item(), *given[1:]) if given and isinstance(given[0], torch.Tensor) else given


def _symbolic(given: tuple[Any, ...]) -> bool:
    return bool(given) and isinstance(given[0], _SYMBOLIC)


def _either(own: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: symbolic(*given) if _symbolic(given) else own(*given)


class _Math(types.ModuleType):
    """`math`, its functions taking symbolic sizes too."""

    def __init__(self) -> None:
        super().__init__("math")

    def __getattr__(self, name: str) -> Any:
        own = getattr(math, name)
        return _MATH.get(own, own) if callable(own) else own


def _extreme(own: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*given: Any, **named: Any) -> Any:
        if len(given) > 1 and not named and any(isinstance(g, _SYMBOLIC) for g in given):
            return functools.reduce(symbolic, given)
        return own(*given, **named)

    return choose


def _roots(root: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    return {
        math.sqrt: _either(math.sqrt, root),
        math.isqrt: _either(math.isqrt, lambda size: torch.sym_int(root(size))),
    }


_BUILTINS = {"int": _Int, "float": _Float, "min": _extreme(min, torch.sym_min), "max": _extreme(max, torch.sym_max)}
_FUNCTION_KINDS = (types.BuiltinFunctionType,)
_MATH: dict[Any, Callable[..., Any]] = {
    **(_roots(SQUARE_ROOT) if SQUARE_ROOT is not None else {}),
    math.trunc: _either(math.trunc, torch.sym_int),
    math.pow: _either(math.pow, lambda base, power: torch.sym_float(base) ** power),
}
