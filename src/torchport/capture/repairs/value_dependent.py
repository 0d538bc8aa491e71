"""Functions whose result depends on values: cov, equal, one_hot, linspace, writes at an index; and known values."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from torchport.capture.origins import line_of_error
from torchport.capture.repairs.repair import capture_repair
from torchport.operators import library, registration
from torchport.operators.composition import is_partial
from torchport.operators.registration import Registered, replaces
from torchport.torch_compat.error_texts import VALUE_FUNCTIONS, says
from torchport.torch_compat.shape_env import check, is_from_values
from torchport.torch_compat.tracing import function_modes, is_batched, is_setitem, plainly, tree_leaves, tree_map

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


# Numbers that a capture can know: `torch.linspace(0, 1, 5)`, a buffer, and what is computed from these alone.
#
# torch.export runs the model on tensors without values, also those that were made of numbers, and stops where one
# becomes a truth or a number of Python's. This mode notes how such a tensor was made, and computes it when it is asked
# for. A tensor that was written to is not known any more: its version tells, which all views of it share. In a branch
# or a round of a loop nothing is known: there, a number is one of many.

_READ = frozenset(
    {"__bool__", "__float__", "__int__", "__index__", "item", "tolist", "is_nonzero", "equal", "allclose"}
)
_PLAIN: tuple[type, ...] = (int, float, bool, complex, str, type(None), type(...))
_PLAIN += (torch.dtype, torch.device, torch.layout, torch.memory_format)
_NOT_COMPUTED = re.compile(r"\w*empty\w*|new|from_file|resize\w*|__get__|__set__")  # of numbers alone
_WRITE = re.compile(r"__setitem__|__i(?!nt__|ndex__|nvert__)\w+__|\w*[a-z0-9]_")


@dataclasses.dataclass
class _Made:
    """The call that made a tensor, from which its numbers can be computed.

    Attributes:
        version: the version counter of the tensor when it was made.
        call: the function, and what it was given.
        place: the position of the tensor in the result of the function.
        given: the tensors that the function was given, with their versions.
        number: the tensor with its numbers, once it was computed.
        outside: it is made of a tensor that was there before the capture, or is one.
    """

    version: int
    call: tuple[Any, ...] = ()
    place: int = 0
    given: list[tuple[torch.Tensor, int]] = dataclasses.field(default_factory=list)
    number: torch.Tensor | None = None
    outside: bool = False


_given_later: list[bool] = []  # not empty while a model is captured whose weights are inputs


@contextlib.contextmanager
def weights_given_later(later: bool) -> Iterator[None]:
    """Take no buffer for known, where the weights are not part of the model."""
    _given_later.extend([True] * later)
    try:
        yield
    finally:
        _given_later.clear()


class KnownNumbers(TorchFunctionMode):
    """Notes how tensors are made of numbers, and answers what is asked of them.

    Args:
        target: the user's model, whose buffers are known before the capture.
    """

    def __init__(self, target: Any) -> None:
        super().__init__()
        self._made = WeakTensorKeyDictionary()
        self._target = target if isinstance(target, torch.nn.Module) else torch.nn.Module()
        self._buffers = {} if _given_later else dict(self._target.named_buffers())
        self._trusts = True  # that what was there before the capture is as it was

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self._note_buffers()
        self._note_write(name, args, kwargs)
        leaves = tree_leaves((args, kwargs))
        if isinstance(func, type) or not all(map(self._may_be_known, leaves)):
            return func(*args, **kwargs)
        if name in _READ:
            answer = self._answer(func, args, kwargs)
            return func(*args, **kwargs) if answer is None else answer
        result = func(*args, **kwargs)
        if not _NOT_COMPUTED.fullmatch(name):
            self._note((func, *tree_map(lambda leaf: leaf, (args, kwargs))), leaves, result)
        return result

    def _note_buffers(self) -> None:
        """In a capture the buffers are tensors without values."""
        if self._buffers and torch.compiler.is_exporting():
            known, self._buffers = self._buffers, {}
            for name, buffer in self._target.named_buffers():
                if name in known and buffer is not known[name]:
                    self._made[buffer] = _Made(buffer._version, number=known[name])

    def _note_write(self, name: str, args: Any, kwargs: Any) -> None:
        """A tensor from before the capture, and one that torch made of it for the capture, share no version."""
        written = [kwargs.get("out"), *(args[:1] if _WRITE.fullmatch(name) else ())]
        if any(isinstance(t, torch.Tensor) and self._is_outside(t) for t in tree_leaves(written)):
            self._trusts = False
            self._made.clear()

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        made = self._made.get(tensor)
        if made is None:
            return type(tensor) is torch.Tensor and not is_batched(tensor) and not tensor.is_inference()
        return made.outside

    def _may_be_known(self, leaf: Any) -> bool:
        if isinstance(leaf, slice):
            return all(type(n) in _PLAIN for n in (leaf.start, leaf.stop, leaf.step))
        if isinstance(leaf, torch.Tensor):
            return leaf in self._made or (self._trusts and self._is_outside(leaf))
        return isinstance(leaf, _PLAIN)

    def _note(self, call: tuple[Any, ...], leaves: list[Any], result: Any) -> None:
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        outside = any(map(self._is_outside, given))
        for place, tensor in enumerate(tree_leaves(result)):
            new = isinstance(tensor, torch.Tensor) and not any(tensor is t for t in given)
            if new and not tensor.is_inference():  # those have no version
                versions = [(t, t._version) for t in given]
                self._made[tensor] = _Made(tensor._version, call, place, versions, outside=outside)

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function with the numbers of its tensors; None if those of one cannot be computed."""
        if any(getattr(mode, "is_boundary", False) for mode in function_modes()):
            return None
        try:
            args, kwargs = tree_map(self._number, (args, kwargs))
            with plainly():
                answer = func(*args, **kwargs)
                return answer.copy() if isinstance(answer, np.ndarray) else answer
        except Exception:  # noqa: BLE001 - not to be computed: torch says what it says of a tensor without values
            return None

    def truth(self, tensor: torch.Tensor) -> bool | None:
        """The truth of a tensor; None if it cannot be known."""
        return self._answer(bool, (tensor,), {}) if self._may_be_known(tensor) else None

    def _number(self, leaf: Any) -> Any:
        """The tensor with its numbers. Anything but a tensor is what it is."""
        made = self._made.get(leaf) if isinstance(leaf, torch.Tensor) else None
        if made is None:
            return leaf
        if leaf._version != made.version or any(t._version != version for t, version in made.given):
            raise ValueError("a tensor was written to")
        if made.number is None:
            func, args, kwargs = tree_map(self._number, made.call)
            with plainly():
                made.number = tree_leaves(func(*args, **kwargs))[made.place]
        return made.number


def known_truth(tensor: torch.Tensor) -> bool | None:
    """The truth of a tensor in the capture that is under way; None if only the running model knows it."""
    mode = next((mode for mode in function_modes() if isinstance(mode, KnownNumbers)), None)
    return None if mode is None else mode.truth(tensor)


# Whole numbers that leave torch: `top = frequencies.topk(2).indices.numpy()`, then `period = length // top[0]`.
#
# They become an array of numbers that only the running model knows, as `item()` gives one. NumPy computes with them
# one by one, and where such an array comes back to torch, as an index say, it is a tensor again.

_MOST_NUMBERS = 64  # in an array; each is an operator of its own
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class NumberArrays(TorchFunctionMode):
    """Gives arrays of numbers in the place of those that torch refuses to give, and takes them back."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("numpy", "__array__") and _is_small(args[0]):
            numbers = [number.item() for number in args[0].reshape(-1).unbind()]
            array = np.empty(len(numbers), dtype=object)
            array[:] = numbers
            return array.reshape(tuple(args[0].shape))
        args, kwargs = tree_map(_as_tensor, (args, kwargs or {}))
        return func(*args, **kwargs)


def _is_small(tensor: torch.Tensor) -> bool:
    known = torch.compiler.is_exporting() and all(isinstance(size, int) for size in tensor.shape)
    return known and tensor.dtype in _WHOLE and tensor.numel() <= _MOST_NUMBERS


def _as_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray) or leaf.dtype != object or not leaf.size:
        return leaf
    numbers = [torch.scalar_tensor(number, dtype=torch.int64) for number in leaf.flat]
    return torch.stack(numbers).reshape(leaf.shape)
