"""`int()`, `len()`, `range()` and the like on symbolic values, without fixing a size or a tensor's value."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.control_flow.branches import cond, for_loop, truth_of
from torchport.capture.control_flow.dynamic_lists import OpenList, Rows, as_number_tensor
from torchport.capture.control_flow.iteration import Enumerated, Items, Numbers, Range, Reversed, Zipped, items_of
from torchport.capture.control_flow.merging import UNSET
from torchport.torch_compat.tracing import is_setitem


def bool_(value: Any = False) -> Any:
    return truth_of(value)


def int_(value: Any = 0, *base: Any) -> Any:
    """`int(value)`, without fixing a size or a tensor's value."""
    if isinstance(value, torch.Tensor) and torch.compiler.is_exporting():
        return value.reshape(()).to(torch.int64).item()
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return torch.sym_int(value)
    return builtins.int(value, *base)


def float_(value: Any = 0.0) -> Any:
    """`float(value)`, without fixing a size or a tensor's value."""
    if isinstance(value, torch.Tensor) and torch.compiler.is_exporting():
        exact = value.dtype in (torch.float32, torch.float64)
        return value.reshape(()).to(value.dtype if exact else torch.get_default_dtype())
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return torch.sym_float(value)
    return builtins.float(value)


def item_(value: Any) -> Any:
    """`value.item()`: a whole number may be a size; any other stays a tensor without axes."""
    if not isinstance(value, torch.Tensor) or not torch.compiler.is_exporting():
        return value.item()
    if value.dtype.is_floating_point:
        return float_(value)
    return value.reshape(()) if value.dtype is torch.bool else value.item()


def divmod_(value: Any, divisor: Any) -> tuple[Any, Any]:
    return value // divisor, value % divisor


def len_(value: Any) -> Any:
    """`len(value)`, without fixing a size."""
    if isinstance(value, torch.Tensor):
        return value.shape[0]
    return value.length() if isinstance(value, (OpenList, Items)) else builtins.len(value)


def min_(*values: Any, **options: Any) -> Any:
    """`min(...)` of sizes, without fixing them."""
    return _extreme(builtins.min, torch.sym_min, torch.minimum, values, options)


def max_(*values: Any, **options: Any) -> Any:
    """`max(...)` of sizes, without fixing them."""
    return _extreme(builtins.max, torch.sym_max, torch.maximum, values, options)


def _extreme(plain: Any, symbolic: Any, of_tensors: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
    stacked = _stacked(values[0]) if builtins.len(values) == 1 else None
    if stacked is not None:
        return _number(stacked.amax(0) if plain is builtins.max else stacked.amin(0), values[0])
    given = builtins.list(values[0]) if builtins.len(values) == 1 else builtins.list(values)
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    if not options and torch.compiler.is_exporting() and tensors:
        given = [v if isinstance(v, torch.Tensor) else torch.full((), v, dtype=tensors[0].dtype) for v in given]
        return _folded(of_tensors, given)
    if not options and builtins.any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in given):
        return _folded(symbolic, given)
    return plain(*values, **options)


def _folded(function: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def sqrt_(value: Any) -> Any:
    """`math.sqrt(value)`, without fixing a size."""
    if isinstance(value, torch.Tensor):
        return value.sqrt()
    return torch.sym_sqrt(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else math.sqrt(value)


def round_(value: Any, digits: Any = None) -> Any:
    """`round(value)`, without fixing a tensor's value."""
    if not isinstance(value, torch.Tensor) or not torch.compiler.is_exporting():
        return builtins.round(value, digits)
    return int_(value.round()) if digits is None else value.round(decimals=digits)


def floor_(value: Any) -> Any:
    """`math.floor(value)`, without fixing a tensor's value."""
    return _whole(value, math.floor, torch.floor)


def ceil_(value: Any) -> Any:
    """`math.ceil(value)`, without fixing a tensor's value."""
    return _whole(value, math.ceil, torch.ceil)


def trunc_(value: Any) -> Any:
    """`math.trunc(value)`, without fixing a size or a tensor's value."""
    return int_(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else _whole(value, math.trunc, torch.trunc)


def _whole(value: Any, plain: Callable[[Any], Any], of_tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    open_ = isinstance(value, torch.Tensor) and torch.compiler.is_exporting()
    return int_(of_tensor(value)) if open_ else plain(value)


def list_(value: Any = ()) -> Any:
    """`list(value)`; of a tensor or a list of unknown length, one of unknown length."""
    if isinstance(value, OpenList):
        return value.copy()
    if isinstance(value, Items) and _open(value):
        return value
    if isinstance(value, torch.Tensor) and not isinstance(value.shape[0], int):
        return Rows(value)
    return builtins.list(value)


def tolist_(value: Any) -> Any:
    """`value.tolist()`, without fixing how many there are."""
    if isinstance(value, torch.Tensor) and value.dim() == 1 and not isinstance(value.shape[0], int):
        return Numbers(value)
    return value.tolist()


def sum_(values: Any, start: Any = 0) -> Any:
    stacked = _stacked(values)
    return builtins.sum(values, start) if stacked is None else _number(stacked.sum(0), values) + start


def any_(values: Any) -> Any:
    return _quantified(values, builtins.any, torch.any)


def all_(values: Any) -> Any:
    return _quantified(values, builtins.all, torch.all)


def _quantified(values: Any, plain: Callable[..., Any], of_tensor: Callable[..., Any]) -> Any:
    stacked = _stacked(values)
    if stacked is None and isinstance(values, builtins.list) and builtins.any(_open_truth(v) for v in values):
        stacked = torch.stack(
            [as_number_tensor(t, torch.bool) if isinstance(t, bool) else t for t in map(truth_of, values)]
        )
    return plain(values) if stacked is None else of_tensor(stacked)


def _open_truth(value: Any) -> bool:
    return not isinstance(truth_of(value), bool)


def _stacked(values: Any) -> torch.Tensor | None:
    """The one tensor behind a list of unknown length."""
    if isinstance(values, Rows):
        return values.tensor()
    return values.tensor if isinstance(values, Numbers) else None


def _number(value: torch.Tensor, of: Any) -> Any:
    """Whole numbers that came from a list of numbers are numbers again."""
    return item_(value) if isinstance(of, Numbers) or (isinstance(of, Rows) and of.numbers) else value


def range_(*arguments: Any) -> Any:
    """`range(...)`, of sizes that are not known too."""
    plain = [int_(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    return builtins.range(*plain) if builtins.all(isinstance(a, int) for a in plain) else Range(*plain)


def zip_(*iterables: Any, **options: Any) -> Any:
    parts = [items_of(i) for i in iterables]
    known = [p for p in parts if p is not None]
    if builtins.len(known) != builtins.len(parts) or not builtins.any(_open(p) for p in known):
        return builtins.zip(*iterables, **options)  # noqa: B905 - as the user wrote it
    return Zipped(known)


def enumerate_(iterable: Any, start: Any = 0) -> Any:
    items = items_of(iterable)
    return Enumerated(items, start) if items is not None and _open(items) else builtins.enumerate(iterable, start)


def reversed_(iterable: Any) -> Any:
    items = items_of(iterable)
    return Reversed(items) if items is not None and _open(items) else builtins.reversed(iterable)


def _open(items: Items) -> bool:
    return not isinstance(items.length(), int)


def collect(iterable: Any, item: Callable[[Any], Any], keep: Callable[[Any], Any] | None = None) -> Any:
    """`[item(i) for i in iterable if keep(i)]`"""

    def step(i: Any, collected: list[Any]) -> Any:
        if keep is None:
            collected.append(item(i))
            return False, collected

        def add(collected: list[Any]) -> Any:
            collected.append(item(i))
            return (collected,)

        def leave(collected: list[Any]) -> Any:
            return (collected,)

        (collected,) = cond(keep(i), add, leave, collected)
        return False, collected

    (collected,) = for_loop(iterable, step, [])
    return collected


def bound(value: Callable[[], Any]) -> Any:
    """A variable that may have no value yet."""
    try:
        return value()
    except NameError:
        return UNSET


# Operators that fix a size, or leave a graph without a value, given in others that do not.
#
# - Pooling along one axis: torch's kernel reads that size as a plain number.
# - A number written to places of a tensor: inside a branch torch makes a constant of it that has no value.
# - The number of a tensor's elements: inside a branch torch loses it. The product of its sizes is kept.


_COUNTS = (torch.numel, torch.Tensor.numel, torch.Tensor.nelement)


class OpenSizes(TorchFunctionMode):
    """Takes the place of such operators while the model runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.max_pool1d, torch.nn.functional.max_pool1d) and not kwargs.get("return_indices"):
            return _max_pool1d(*args, **kwargs)
        if is_setitem(func) and isinstance(args[2], (int, float)):
            tensor, places, number = args
            return func(tensor, places, torch.full((), number, dtype=tensor.dtype))
        if func in _COUNTS and builtins.any(isinstance(size, torch.SymInt) for size in args[0].shape):
            return math.prod(args[0].shape)
        return func(*args, **kwargs)


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor:
    """Of one axis as of two, the first of size one."""
    size, move, pad, apart = map(_first, (kernel_size, stride or kernel_size, padding, dilation))
    pooled = torch.max_pool2d(
        input.unsqueeze(-2), (1, size), (1, move), (0, pad), dilation=(1, apart), ceil_mode=ceil_mode
    )
    return pooled.squeeze(-2)


def _first(given: Any) -> Any:
    return given[0] if isinstance(given, (list, tuple)) else given
