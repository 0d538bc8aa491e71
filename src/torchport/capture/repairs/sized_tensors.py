"""Sizes that go through a tensor of one number: `torch.div(n, 2, rounding_mode="floor")`, `torch.tensor(n).sqrt()`.

What comes out of a tensor is a value to torch.export, not a size. In this mode a tensor that was made of sizes
remembers what it stands for, arithmetic on such tensors is done on the sizes as well, and wherever a number is wanted
the size is given instead. It is part of the repair in `symbolic_sizes.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from torchport.torch_compat import registries

SQUARE_ROOT: Callable[..., Any] | None = registries.python_function("torch._sym_sqrt")  # None where torch lacks it

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SizedTensors(TorchFunctionMode):
    """Watches every call of torch, and keeps the size behind each tensor that stands for one."""

    def __init__(self) -> None:
        super().__init__()
        self._known = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):  # an attribute, x.shape say
            return func(*args, **kwargs)
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

    def _size(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return self._known.get(given, given)
        if isinstance(given, slice):
            return slice(*map(self._size, (given.start, given.stop, given.step)))
        return given


def _has(kinds: tuple[type, ...], given: Any) -> bool:
    if isinstance(given, dict):
        return _has(kinds, list(given.values()))
    if isinstance(given, (list, tuple)):
        return any(_has(kinds, child) for child in given)
    if isinstance(given, slice):
        return _has(kinds, [given.start, given.stop, given.step])
    return isinstance(given, kinds)


def _written_to(args: tuple[Any, ...], sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first argument stays a tensor where it was one: a method is called on it."""
    return args[:1] + sizes[1:] if args and isinstance(args[0], torch.Tensor) else sizes


def _meant(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k == "rounding_mode"}


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


_NUMBERS = ("item", "tolist", "__int__", "__index__", "__float__", "__bool__")
_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("tensor", "as_tensor", "scalar_tensor", "clone", "detach", "to", "type", "item", "tolist"), _same),
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
    **({"sqrt": SQUARE_ROOT} if SQUARE_ROOT is not None else {}),
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


def _rule(name: str) -> Callable[..., Any] | None:
    return _RULES.get(name)
