"""Functions whose result depends on values: cov, equal, one_hot, linspace, writes at an index."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchport.capture.origins import line_of_error
from torchport.capture.repairs.repair import capture_repair
from torchport.operators import library, registration
from torchport.operators.composition import is_partial
from torchport.operators.registration import Registered, replaces
from torchport.torch_compat.error_texts import VALUE_FUNCTIONS, says
from torchport.torch_compat.shape_env import check, is_from_values
from torchport.torch_compat.tracing import is_setitem

# torch.cov, torch.corrcoef, torch.combinations, torch.linalg.lstsq, ctc_loss, torch.equal, torch.allclose.
#
# They look at values as they compute. They are called in the form of torchport's library instead, which gives the same
# numbers without looking. The truth of two tensors being equal is asked for with `item()`, which torch.export knows.


@replaces("torch.equal", "torch.Tensor.equal")
def equal(input: Any, other: Any) -> Any:
    return (input == other).all().item() if input.shape == other.shape else False


@replaces("torch.allclose", "torch.Tensor.allclose")
def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    return torch.isclose(input, other, rtol, atol, equal_nan).all().item()


def registered() -> tuple[Registered, ...]:
    """Return the functions that are called in the place of torch's own, by torch's name."""
    return (*registration.registered_in(__name__), *library.replacements())


def _needs_value_checks(error: Exception) -> bool:
    return says(error, *VALUE_FUNCTIONS)


@capture_repair("functions that look at values by ones that do not", after=_needs_value_checks)
@contextlib.contextmanager
def value_checks(target: Any) -> Iterator[bool]:
    with _Instead():
        yield True


class _Instead(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        found = registration.found(registered())
        self._instead = {function: ours for function, ours in found.items() if not is_partial(ours)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._instead.get(func, func)(*args, **(kwargs or {}))


# Functions that take a size for a number: linspace, istft, tril_indices, adaptive pooling, pad_sequence and others.
#
# Torch fixes a size that is given to them, or decides a condition on it. Where a size that matters to them varies, the
# form of torchport's library is called.


@capture_repair("functions of sizes that vary")
@contextlib.contextmanager
def varying_sizes(target: Any) -> Iterator[list[str]]:
    used: list[str] = []
    with _Varying(used):
        yield used


class _Varying(TorchFunctionMode):
    def __init__(self, used: list[str]) -> None:
        super().__init__()
        self._used = used
        found = registration.found(registered())
        self._instead = {function: ours for function, ours in found.items() if is_partial(ours)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = self._instead.get(func)
        result = NotImplemented if ours is None else ours(*args, **kwargs)
        if result is NotImplemented:
            return func(*args, **kwargs)
        self._used.append(getattr(func, "__name__", ""))
        return result


# `one_hot(x)` without a number of classes: one more than the largest in `x`, which torch.export does not take.
#
# Compared with the numbers up to that one it is a shape that comes from a value, like any other.


def _needs_one_hot(error: Exception) -> bool:
    return says(error, "data-dependent") and "one_hot" in line_of_error(error)


@capture_repair("one_hot with as many classes as the values say", after=_needs_one_hot)
@contextlib.contextmanager
def one_hot(target: Any) -> Iterator[bool]:
    with _OneHot():
        yield True


class _OneHot(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.one_hot or _classes(*args, **kwargs) != -1:
            return func(*args, **kwargs)
        numbers = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
        classes = numbers.max().item() + 1
        check(classes >= 0)
        return (numbers.unsqueeze(-1) == torch.arange(classes)).to(torch.int64)


def _classes(tensor: Any = None, num_classes: Any = -1, **_: Any) -> Any:
    return num_classes


# `x[i] = value` with an `i` that is a tensor of one number, `x[:, n] = value` with an `n` that is a symbolic size.
#
# torch.export asks for the number's value there, or takes no symbol at all. Reading it handles; for writing, a place
# that a tensor says becomes a list of one place, and one that a size says a view to write to.

_WRITES = re.compile(r"\]\s*(//|\*\*|[-+*/@%&|^])?=(?!=)")


def _needs_written_places(error: Exception) -> bool:
    return says(error, "data-dependent", "symbolic place") and _WRITES.search(line_of_error(error)) is not None


@capture_repair("writing at a place a tensor or a size says", after=_needs_written_places)
@contextlib.contextmanager
def written_places(target: Any) -> Iterator[bool]:
    with _Places():
        yield True


class _Places(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_setitem(func):
            return func(*args, **(kwargs or {}))
        tensor, index, value = args
        parts = index if isinstance(index, tuple) else (index,)
        if any(map(_has_open_bounds, parts)) and all(isinstance(p, slice) and p.step in (None, 1) for p in parts):
            tensor.copy_(_with_part(tensor, parts, torch.as_tensor(value, dtype=tensor.dtype)))
            return None
        if any(isinstance(p, torch.SymInt) for p in parts) and not any(isinstance(p, torch.Tensor) for p in parts):
            _view(tensor, parts).copy_(value if isinstance(value, torch.Tensor) else torch.full((), value))
            return None
        return func(tensor, tuple(map(_listed, parts)) if isinstance(index, tuple) else _listed(index), value)


# `image[y0:y1, x0:x1] = part` with bounds that only values tell: torch cannot know that the sizes of both sides agree.
#
#     image[i, j] = part[i - y0, j - x0]   where y0 <= i < y1 and x0 <= j < x1
#
# An index beyond the part is never used, or is the only one of an axis that is broadcast.


def _has_open_bounds(part: Any) -> bool:
    bounds = (part.start, part.stop) if isinstance(part, slice) else ()
    return any(isinstance(b, torch.Tensor) or is_from_values(b) for b in bounds)


def _with_part(tensor: torch.Tensor, parts: tuple[slice, ...], value: torch.Tensor) -> torch.Tensor:
    """The tensor with a value written to slices of its first axes."""
    inside = torch.ones((), dtype=torch.bool)
    for axis, part in enumerate(parts):
        size, behind = tensor.shape[axis], tensor.dim() - axis - 1
        places = torch.arange(size)
        start, stop = (_bound(b, size, default) for b, default in ((part.start, 0), (part.stop, size)))
        inside = inside & ((places >= start) & (places < stop)).reshape(-1, *[1] * behind)
        own = value.dim() - behind - 1  # the axis of the value, which may have fewer
        if own >= 0:
            padded = torch.cat([value, value.new_zeros((*value.shape[:own], 1, *value.shape[own + 1 :]))], own)
            value = padded.index_select(own, (places - start).clamp(max=value.shape[own] - 1).clamp(min=0))
    return torch.where(inside, value, tensor)


def _bound(bound: Any, size: Any, default: Any) -> Any:
    """Return the start or stop of a slice as PyTorch takes it: a negative one from the end, then within 0..size."""
    found = default if bound is None else bound
    number = found if isinstance(found, torch.Tensor) else torch.full((), found, dtype=torch.int64)
    return torch.where(number < 0, number + size, number).clamp(min=0).clamp(max=size)


def _listed(index: Any) -> Any:
    """A single place as a list of one."""
    single = isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype in (torch.int64, torch.int32)
    return index.reshape(1) if single else index


def _view(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    """`tensor[parts]` by numbers, slices, None and `...`, step by step."""
    axis = 0
    for number, part in enumerate(parts):
        if part is Ellipsis:
            axis = tensor.dim() - sum(p is not None for p in parts[number + 1 :])
        elif part is None:
            tensor = tensor.unsqueeze(axis)
            axis += 1
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, part.start, part.stop, part.step or 1)
            axis += 1
        else:
            tensor = tensor.select(axis, part)
    return tensor
