"""Sizes that Python, math or a tensor of one element turns into numbers, kept symbolic."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from torchport.capture.repairs.repair import capture_repair
from torchport.capture.repairs.value_dependent import KnownNumbers, NumberArrays
from torchport.errors import FixedDimensionError
from torchport.torch_compat.error_texts import says
from torchport.torch_compat.parts import patched
from torchport.torch_compat.shape_env import quotients_named, rounds
from torchport.torch_compat.tracing import tree_leaves, tree_map

# Sizes that go through a tensor of one number: `torch.div(n, 2, rounding_mode="floor")`, `torch.tensor(n).sqrt()`.
#
# What comes out of a tensor is a value to torch.export, not a size. In this mode a tensor that was made of sizes
# remembers what it stands for, arithmetic on such tensors is done on the sizes as well, and wherever a number is wanted
# the size is given instead. A tensor of several sizes, `torch.tensor([[h, w], [h // 2, w // 2]])` of levels say, stands
# for an array of them, which NumPy indexes and computes with as torch does.

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SizedTensors(TorchFunctionMode):
    """Watches every call of torch, and keeps the size behind each tensor that stands for one."""

    def __init__(self) -> None:
        super().__init__()
        self._known = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "size"):  # an attribute, x.shape say
            return _open(func(*args, **kwargs))
        if self._is_table(name, args):
            return self._tabled(func, name, args, kwargs)
        sizes_args, sizes_kwargs = self._sizes(args), self._sizes(kwargs)
        if not _has(_SYMBOLIC, (sizes_args, sizes_kwargs)):
            return func(*args, **kwargs)
        rule = None if _has((torch.Tensor,), (sizes_args, sizes_kwargs)) else _rule(name)
        if rule is None:
            return func(*_written_to(args, sizes_args), **sizes_kwargs)
        size = rule(*sizes_args, **_meant(sizes_kwargs))
        if name in _NUMBERS:
            return size
        tensor = torch.scalar_tensor(size, dtype=kwargs.get("dtype") or _dtype(size))
        self._known[tensor] = size
        return tensor

    def _sizes(self, given: Any) -> Any:
        """`given` with the size in the place of each tensor that stands for one."""
        return tree_map(self._size, given)

    def _is_table(self, name: str, args: tuple[Any, ...]) -> bool:
        """Check that a call makes a tensor of several sizes, or takes one."""
        if name in _MAKERS:
            return bool(args) and isinstance(args[0], (list, tuple)) and _has(_SYMBOLIC, self._sizes(args[0]))
        known = [self._of(leaf) for leaf in tree_leaves(args)]
        return any(isinstance(one, np.ndarray) or (name in _JOINS and one is not None) for one in known)

    def _tabled(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function on tensors of sizes; what it gives stands for sizes too, where that is known."""
        if name in _MAKERS:
            table = np.array(self._sizes(args[0]), dtype=object)
            numbers = [torch.scalar_tensor(n, dtype=kwargs.get("dtype") or _dtype(n)) for n in table.flat]
            return self._remembered(torch.stack(numbers).reshape(table.shape), table)
        plain = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        rule = _table_rule(name) if all(self._of(t) is not None for t in plain) else None
        if rule is None:
            return func(*args, **kwargs)
        table = rule(*tree_map(self._table, args), **_meant(tree_map(self._table, kwargs)))
        return table.tolist() if name in ("tolist", "numpy") else self._remembered(func(*args, **kwargs), table)

    def _of(self, leaf: Any) -> Any:
        return self._known.get(leaf) if isinstance(leaf, torch.Tensor) else None

    def _table(self, given: Any) -> Any:
        known = self._of(given)
        return given if known is None else np.asarray(known, dtype=object)

    def _remembered(self, result: Any, table: Any) -> Any:
        if isinstance(result, torch.Tensor):
            self._known[result] = table.item() if isinstance(table, np.ndarray) and not table.ndim else table
        else:
            for part, sizes in zip(result, table, strict=True):
                self._remembered(part, sizes)
        return result

    def _size(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            known = self._known.get(given, given)
            return given if isinstance(known, np.ndarray) else known
        if isinstance(given, slice):
            return slice(*map(self._size, (given.start, given.stop, given.step)))
        return given


class _Shape(tuple[Any, ...]):
    """The shape of a tensor. `numel` of torch.Size, which cannot be a base class, settles every size in it."""

    __class__ = property(lambda self: torch.Size)

    def numel(self) -> Any:
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return _Shape(part) if isinstance(index, slice) else part

    def __add__(self, other: Any) -> Any:
        return _Shape((*self, *other))

    def __radd__(self, other: Any) -> Any:
        return _Shape((*other, *self))


def _open(value: Any) -> Any:
    """A shape with symbolic sizes in the form that keeps them; anything else as it is."""
    return _Shape(value) if type(value) is torch.Size and any(isinstance(size, _SYMBOLIC) for size in value) else value


_ITERATIONS = (list.__iter__, tuple.__iter__)


def _has(kinds: tuple[type, ...], given: Any) -> bool:
    if isinstance(given, dict):
        return _has(kinds, list(given.values()))
    if isinstance(given, (list, tuple)):  # a list that is kept in tensors, as control flow makes one, has no such items
        return type(given).__iter__ in _ITERATIONS and any(_has(kinds, child) for child in given)
    if isinstance(given, slice):
        return _has(kinds, [given.start, given.stop, given.step])
    return isinstance(given, kinds)


def _written_to(args: tuple[Any, ...], sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first argument stays a tensor where it was one: a method is called on it."""
    return args[:1] + sizes[1:] if args and isinstance(args[0], torch.Tensor) else sizes


def _meant(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in ("rounding_mode", "dim", "keepdim", "index")}


def _dtype(size: Any) -> torch.dtype:
    if isinstance(size, (torch.SymBool, bool)):
        return torch.bool
    return torch.float32 if isinstance(size, (torch.SymFloat, float)) else torch.int64


def _divide(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    return a // b if rounding_mode == "floor" else torch.sym_int(a / b)


def _whole(number: Any, *others: Any) -> Any:
    return torch.sym_int(number)


def _same(number: Any, *others: Any) -> Any:
    return number


_NUMBERS = ("item", "tolist", "numpy", "__int__", "__index__", "__float__", "__bool__")
_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("tensor", "as_tensor", "scalar_tensor", "clone", "detach", "to", "cpu", "type", "item", "tolist", "numpy"),
        _same,
    ),
    **dict.fromkeys(("__int__", "__index__", "long", "int", "trunc", "fix"), _whole),
    **dict.fromkeys(("__float__", "float", "double"), torch.sym_float),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), _divide),
    **dict.fromkeys(("floor_divide", "__floordiv__"), operator.floordiv),
    **dict.fromkeys(("__rtruediv__", "__rdiv__"), lambda a, b: b / a),
    **dict.fromkeys(("__rfloordiv__",), lambda a, b: b // a),
    **dict.fromkeys(("add", "__add__", "__radd__"), operator.add),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), operator.mul),
    **dict.fromkeys(("sub", "subtract", "__sub__"), operator.sub),
    **dict.fromkeys(("rsub", "__rsub__"), lambda a, b: b - a),
    **dict.fromkeys(("remainder", "__mod__"), operator.mod),
    **dict.fromkeys(("neg", "negative", "__neg__"), operator.neg),
    **dict.fromkeys(("pow", "__pow__"), operator.pow),
    **dict.fromkeys(("ceil",), math.ceil),
    **dict.fromkeys(("floor",), math.floor),
    **dict.fromkeys(("sqrt",), torch.sym_sqrt),
    **dict.fromkeys(("maximum",), torch.sym_max),
    **dict.fromkeys(("minimum",), torch.sym_min),
    **dict.fromkeys(("gt", "__gt__"), operator.gt),
    **dict.fromkeys(("ge", "__ge__"), operator.ge),
    **dict.fromkeys(("lt", "__lt__"), operator.lt),
    **dict.fromkeys(("le", "__le__"), operator.le),
    **dict.fromkeys(("eq", "__eq__"), operator.eq),
    **dict.fromkeys(("ne", "__ne__"), operator.ne),
    "__bool__": bool,
}


_MAKERS = ("tensor", "as_tensor")
_JOINS = ("stack", "cat", "concat")  # torch makes a tensor of a list of sizes by stacking


def _rule(name: str) -> Callable[..., Any] | None:
    return _RULES.get(name)


def _table_rule(name: str) -> Callable[..., Any] | None:
    """Return the function of arrays of sizes that corresponds to a function of tensors; None if there is none."""
    if name in _TABLE_RULES:
        return _TABLE_RULES[name]
    rule = None if name in _MAKERS or name in _NUMBERS else _rule(name)
    return None if rule is None else np.vectorize(rule, otypes=[object], excluded=["rounding_mode"])


def _along(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of NumPy with the axis as torch gives it."""
    return lambda table, dim=None, keepdim=False: np.asarray(reduce(table, axis=dim, keepdims=keepdim), dtype=object)


def _shaped(table: Any, *shape: Any) -> Any:
    return table.reshape(*shape)


_TABLE_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("tolist", "numpy", "clone", "detach", "cpu", "contiguous", "to"), lambda table, *_: table),
    **dict.fromkeys(("long", "int"), np.vectorize(_whole, otypes=[object])),
    "__getitem__": lambda table, index: np.asarray(table[index], dtype=object),
    "select": lambda table, dim, index: np.asarray(table.take(index, axis=dim), dtype=object),
    "unbind": lambda table, dim=0: list(np.moveaxis(table, dim, 0)),
    **dict.fromkeys(("reshape", "view"), _shaped),
    "flatten": lambda table: table.reshape(-1),
    "flip": lambda table, *dims: np.flip(table, tuple(tree_leaves(dims))),
    "sum": _along(np.sum),
    "prod": _along(np.prod),
    "cumsum": lambda table, dim: np.cumsum(table, axis=dim),
    **dict.fromkeys(_JOINS, lambda tables, dim=0: np.concatenate(tables, axis=dim)),
    "stack": lambda tables, dim=0: np.stack(tables, axis=dim),
    "new_zeros": lambda table, *shape: np.zeros(tuple(tree_leaves(shape)), dtype=object),
}


# Sizes that are turned into numbers: `int(n * 0.5)`, `math.sqrt(n)`, `torch.div(n, 2, rounding_mode="floor")`.
#
# Python insists that `int` gives an int, so torch.export has to settle the size there, and the dimension is fixed to
# the example's; and what comes out of a tensor is a value to it, on which no size may depend. While this repair holds,
#
# - the modules that a model may run through, all that are loaded but Python's own, torch's and ours, see names of ours:
#   an `int` and a `float` that leave a symbolic size symbolic and are Python's for anything else, and a `math` whose
#   functions do the same;
# - a symbolic size can be a key of a dict or of a cache;
# - a number that is computed with a quotient of sizes gets a name, see `quotients_named`;
# - a tensor that was made of sizes remembers what it stands for, see `SizedTensors`.

_NOT_THE_MODELS = {
    *sys.stdlib_module_names,
    *("torch", "functorch", "torchgen", "triton", "sympy", "mpmath", "networkx", "jinja2", "fsspec", "filelock"),
    *("torchport", "numpy", "ml_dtypes", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "google", "safetensors"),
    *("typing_extensions", "click", "rich", "yaml", "packaging", "setuptools", "pkg_resources", "_distutils_hack"),
    *("pytest", "_pytest", "pluggy", "hypothesis", "xdist", "execnet"),
}
_captures = itertools.count()


def _needs_symbolic_sizes(error: Exception) -> bool:
    return isinstance(error, FixedDimensionError) or says(
        error, "data-dependent", "size in divmod", "size as array", "size as key", "symbolic place"
    )


@capture_repair("sizes kept symbolic through int(), math and tensors", after=_needs_symbolic_sizes)
@contextlib.contextmanager
def symbolic_sizes(target: Any) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(NumberArrays())
        stack.enter_context(SizedTensors())
        stack.enter_context(KnownNumbers(target))
        stack.enter_context(quotients_named())
        stack.enter_context(patched("SymInt.__hash__", _by_expression))
        for names in _namespaces():
            stack.enter_context(_shadowed(names))
        yield True


def _by_expression(original: Callable[[torch.SymInt], int]) -> Callable[[torch.SymInt], int]:
    """A hash for symbolic sizes. Those of two captures differ, so that a cache gives none of another capture's."""
    capture = next(_captures)
    return lambda size: hash((capture, str(size)))


def _namespaces() -> list[dict[str, Any]]:
    """The global names of every loaded module that a model may run through."""
    # a copy of the table: a module may be imported meanwhile
    loaded = [(name.partition(".")[0], module) for name, module in list(sys.modules.items())]
    return [vars(m) for owner, m in loaded if isinstance(m, types.ModuleType) and owner not in _NOT_THE_MODELS]


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


def _divmod(value: Any, divisor: Any) -> tuple[Any, Any]:
    symbolic = isinstance(value, _SYMBOLIC) or isinstance(divisor, _SYMBOLIC)
    return (value // divisor, value % divisor) if symbolic else divmod(value, divisor)


def _len(given: Any) -> Any:
    return given.shape[0] if isinstance(given, torch.Tensor) and given.dim() else len(given)


class _Ranges(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, range)


class _Range(metaclass=_Ranges):
    """`range` of sizes. Where their number is the same whatever the sizes, it is a list of sizes."""

    def __new__(cls, *given: Any) -> Any:
        if any(isinstance(g, torch.SymInt) for g in given) and all(isinstance(g, int | torch.SymInt) for g in given):
            start, stop, step = (0, given[0], 1) if len(given) == 1 else (*given, 1)[:3]
            count = rounds(stop - start, step)
            if isinstance(count, int):
                return [start + number * step for number in range(count)]
        return range(*given)


_BUILTINS: dict[str, Any] = {
    "range": _Range,
    "int": _Int,
    "float": _Float,
    "divmod": _divmod,
    "len": _len,
    "min": _extreme(min, torch.sym_min),
    "max": _extreme(max, torch.sym_max),
}
_FUNCTION_KINDS = (types.BuiltinFunctionType,)


def _by_tensor(name: str) -> Callable[..., Any]:
    """A function of `math` that torch has for tensors only. The number is one that only the running model knows."""
    return _either(getattr(math, name), lambda size: _computed(name, size).item())


def _computed(name: str, size: Any) -> torch.Tensor:
    value: torch.Tensor = getattr(torch.scalar_tensor(size, dtype=torch.float64), name)()
    if name not in ("log2", "log10"):
        return value
    near = value.round()  # ONNX divides two logarithms, and that of 1000 and 10 gives less than 3
    return torch.where((value - near).abs() < 1e-11, near, value)


def _logarithm(size: Any, base: Any = math.e) -> Any:
    natural = _by_tensor("log")
    return natural(size) if base == math.e else natural(size) / natural(base)


_MATH: dict[Any, Callable[..., Any]] = {
    math.sqrt: _either(math.sqrt, torch.sym_sqrt),
    math.isqrt: _either(math.isqrt, lambda size: torch.sym_int(torch.sym_sqrt(size))),
    math.trunc: _either(math.trunc, torch.sym_int),
    math.pow: _either(math.pow, lambda base, power: torch.sym_float(base) ** power),
    math.log: _either(math.log, _logarithm),
    **{
        getattr(math, name): _by_tensor(name) for name in ("log2", "log10", "log1p", "exp", "sin", "cos", "tan", "tanh")
    },
}
