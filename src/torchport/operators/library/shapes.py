"""Operators that move or resize: roll, resize, split, views, linspace, windows, negative padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset18

from torchport.operators.composition import only_where
from torchport.operators.registration import composes, replaces, translates
from torchport.torch_compat.shape_env import guard_int

# aten::roll
#
#     output[i] = input[(i - shift) mod n], along each of the axes; without axes the flat input is rolled
#
# For shifts that come from a value: torch's own translation takes plain numbers only.
#
# Source of truth: ATen's native/TensorTransformations.cpp.


def _is_open(self: Any, shifts: Any, dims: Any = ()) -> bool:
    return not all(isinstance(s, int) for s in shifts)


@composes("aten::roll.default")
@only_where(_is_open)
def roll(self: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return _rolled(self.reshape(-1), shifts[0], 0).reshape(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(self, shift, dim)
    return self


def _rolled(x: Any, shift: Any, dim: int) -> Any:
    count = torch.full((), x.shape[dim], dtype=torch.int64, device=x.device)
    return x.index_select(dim, torch.remainder(torch.arange(x.shape[dim], device=x.device) - shift, count))


# aten::resize
#
#     output = the first numbers of the flat input, in another shape
#
# To more numbers than there are is refused: nothing was written to the rest.
#
# Source of truth: ATen's native/Resize.cpp.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values


@translates("aten::resize.default")
def resize(self: Any, size: Sequence[Any], memory_format: Any = None) -> Any:
    """Translate one call; PyTorch's resize_ and resize_as_ are taken apart into it."""
    if not all(isinstance(n, int) for n in (*self.shape, *size)):
        raise NotImplementedError("aten::resize with a size that varies; use reshape")
    count = math.prod(size)
    if count > math.prod(self.shape):
        raise NotImplementedError("aten::resize to more numbers than there are; use torch.nn.functional.pad")
    flat = op.Reshape(self, op.Constant(value_ints=[-1]))
    first = op.Slice(flat, op.Constant(value_ints=[0]), op.Constant(value_ints=[count]))
    return op.Reshape(first, op.Constant(value_ints=list(size)), allowzero=1)


# aten::split by a size that varies, aten::chunk along a dynamic axis
#
#     part i = x[i · size : (i + 1) · size]        size of a chunk = ⌈size of x / chunks⌉
#
# torch's translation makes a sequence of as many parts as the running model finds; onnxscript's optimizer fails on it.
# How many parts there are was settled by the capture, so that each can be a slice. torch makes `split` of `chunk` by
# itself as soon as anything is replaced.

aten: Any = torch.ops.aten


@composes("aten::split.Tensor")
@only_where(lambda self, split_size, dim=0: isinstance(split_size, torch.SymInt))
def split(self: Any, split_size: Any, dim: int = 0) -> Any:
    count = guard_int((self.shape[dim] + split_size - 1) // split_size)
    return [aten.slice.Tensor(self, dim, i * split_size, (i + 1) * split_size) for i in range(count)]


@composes("aten::chunk.default")
@only_where(lambda self, chunks, dim=0: isinstance(self.shape[dim], torch.SymInt))
def chunk(self: Any, chunks: int, dim: int = 0) -> Any:
    return self.split((self.shape[dim] + chunks - 1) // chunks, dim)


# prims::view_of
#
#     output = input
#
# What torch takes a squeeze without axes apart into.


@translates("prims::view_of.default")
def view_of(a: Any) -> Any:
    return op.Identity(a)


# aten::linspace, aten::logspace, with a number of steps that varies
#
#     output[i] = start + i (end - start) / (steps - 1), from the nearer end; logspace: the base to that power
#
# One step is the start alone. Torch's own ask whether there is but one step, and divide by zero where nothing answers.
#
# Source of truth: ATen's native/RangeFactories.cpp and native/cpu/RangeFactoriesKernel.cpp.


def is_open(start: Any = None, end: Any = None, steps: Any = None, *_: Any, **__: Any) -> bool:
    """Whether only the running model knows the number of steps."""
    return isinstance(steps, torch.SymInt)


@replaces("torch.linspace")
@only_where(is_open)
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or _type_of(start, end)
    return _spaced(start, end, steps, dtype).to(dtype)


@replaces("torch.logspace")
@only_where(is_open)
def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or _type_of(start, end)
    exponents = _spaced(start, end, steps, dtype)
    return torch.pow(base, exponents).to(dtype)


def _type_of(start: Any, end: Any) -> torch.dtype:
    given = [v.dtype for v in (start, end) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return given[0] if given else torch.get_default_dtype()


def _spaced(start: Any, end: Any, steps: Any, dtype: torch.dtype) -> Any:
    """In 64 bits; the ends as they are in that type."""
    first, last = (_number(v, dtype) for v in (start, end))
    place = torch.arange(steps)
    count = torch.full((), steps, dtype=torch.int64)
    step = (last - first) / (count - 1).clamp(min=1)
    return torch.where(place < (count + 1) // 2, first + step * place, last - step * (count - 1 - place))


def _number(value: Any, dtype: torch.dtype) -> Any:
    tensor = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=torch.float64)
    return tensor.to(dtype).to(torch.float64)


for _overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    composes(f"aten::linspace.{_overload}")(linspace)
    composes(f"aten::logspace.{_overload}")(logspace)


# aten::arange of a fraction and a size: `torch.arange(0.0, x.shape[1])`
#
# It has fractions, as every number that torch.arange makes of one has; torch's translation goes by the size.


def is_mixed(*numbers: Any, dtype: Any = None, **_: Any) -> bool:
    """Check that `arange` is called without a dtype, with a float and a size that varies."""
    fractions = [isinstance(number, (float, torch.SymFloat)) for number in numbers]
    return dtype is None and any(fractions) and any(isinstance(number, torch.SymInt) for number in numbers)


@composes("aten::arange.start", "aten::arange.start_step")
@only_where(is_mixed)
def arange(*numbers: Any, dtype: Any = None, **options: Any) -> Any:
    return torch.arange(*numbers, dtype=torch.get_default_dtype(), **options)


# torch.hann_window, hamming_window, blackman_window, bartlett_window, of a length that varies
#
#     a - b cos(2πi / n) + c cos(4πi / n), or 1 - |2i / n - 1|, with n the length, one less where it is not periodic
#
# A window of one is 1.
#
# Source of truth: ATen's native/TensorFactories.cpp.


def window(weights: Callable[[Any], Any]) -> Callable[..., Any]:
    """The form of a window that takes a length that varies; `weights` gives it for the places from 0 to 1."""

    @only_where(lambda window_length, *_, **__: isinstance(window_length, torch.SymInt))
    def made(window_length: Any, periodic: bool = True, *numbers: float, dtype: Any = None, **named: Any) -> Any:
        count = torch.full((), window_length, dtype=torch.int64)
        last = (count if periodic else count - 1).clamp(min=1)
        shape = {k: v for k, v in named.items() if k in ("alpha", "beta")}
        found = weights(torch.arange(window_length, dtype=torch.float64) / last, *numbers, **shape)
        return torch.where(count == 1, 1.0, found).to(dtype or torch.get_default_dtype())

    return made


def _raised(place: Any, alpha: float = 0.54, beta: float = 0.46) -> Any:
    return alpha - beta * torch.cos(2 * math.pi * place)


def _hann(place: Any) -> Any:
    return _raised(place, 0.5, 0.5)


def _blackman(place: Any) -> Any:
    return _raised(place, 0.42, 0.5) + 0.08 * torch.cos(4 * math.pi * place)


def _bartlett(place: Any) -> Any:
    return 1 - (2 * place - 1).abs()


for _name, _weights in {"hann": _hann, "hamming": _raised, "blackman": _blackman, "bartlett": _bartlett}.items():
    replaces(f"torch.{_name}_window")(window(_weights))


# aten::pad with "replicate", aten::replication_pad1d, 2d, 3d by negative amounts
#
#     y[i] = x[min(max(i - left, 0), n - 1)] along each axis
#
# A negative amount cuts. ONNX Runtime cuts first and then has nothing to repeat if all is cut; PyTorch repeats the
# first or last number of what was given.
#
# Source of truth: ATen's native/cpu/PaddingKernel.cpp.


def _is_negative(padding: Sequence[Any]) -> bool:
    return any(isinstance(amount, int) and amount < 0 for amount in padding)


@composes("aten::pad.default")
@only_where(lambda self, pad, mode="constant", value=None: mode == "replicate" and _is_negative(pad))
def pad(self: Any, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    return _replicated(self, pad)


@composes("aten::replication_pad1d.default", "aten::replication_pad2d.default", "aten::replication_pad3d.default")
@only_where(lambda self, padding: _is_negative(padding))
def replication_pad(self: Any, padding: Sequence[Any]) -> Any:
    return _replicated(self, padding)


def _replicated(x: Any, padding: Sequence[Any]) -> Any:
    for number, (left, right) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        axis = x.dim() - 1 - number
        size = x.shape[axis]
        places = torch.arange(size + left + right, device=x.device) - left
        x = x.index_select(axis, places.clamp(0, size - 1))
    return x


# torch.tril_indices, torch.triu_indices, torch.nn.utils.rnn.pad_sequence, of sizes that vary
#
#     the places (row, column) with column - row <= offset, or >= offset, row by row
#     sequences one below the other, each followed by the value up to the length of the longest
#
# Torch takes the sizes of the first two for numbers, and compares the lengths of the third, which fixes their order.


def triangle(lower: bool) -> Any:
    """The form of tril_indices or triu_indices that takes sizes that vary."""

    @only_where(lambda row, col, *_, **__: any(isinstance(n, torch.SymInt) for n in (row, col)))
    def indices(row: Any, col: Any, offset: int = 0, *, dtype: Any = torch.int64, device: Any = None, **_: Any) -> Any:
        rows, columns = torch.arange(row, device=device)[:, None], torch.arange(col, device=device)
        inside = columns - rows <= offset if lower else columns - rows >= offset
        return inside.nonzero().T.to(dtype)

    return indices


replaces("torch.tril_indices")(triangle(lower=True))
replaces("torch.triu_indices")(triangle(lower=False))


def _has_open_lengths(sequences: Any, *_: Any, **__: Any) -> bool:
    return isinstance(sequences, (list, tuple)) and any(isinstance(s.shape[0], torch.SymInt) for s in sequences)


@replaces("nn.pad_sequence")
@only_where(_has_open_lengths)
def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Any:
    longest = sequences[0].shape[0]
    for sequence in sequences[1:]:
        longest = torch.sym_max(longest, sequence.shape[0])
    rows = []
    for sequence in sequences:
        more = sequence.new_full((longest - sequence.shape[0], *sequence.shape[1:]), padding_value)
        row = torch.cat([sequence, more] if padding_side == "right" else [more, sequence])
        rows.append(row.narrow(0, 0, longest))
    return torch.stack(rows, 0 if batch_first else 1)


# aten::squeeze of one axis
#
# An axis of another size than 1 stays, and torch.export takes it that a size which varies is not 1. Torch's translation
# removes the axis all the same, and ONNX Runtime refuses to.


@translates("aten::squeeze.dim")
def squeeze(self: Any, dim: int) -> Any:
    one = len(self.shape) > 0 and self.shape[dim] == 1
    return op.Squeeze(self, [dim]) if one else op.Identity(self)
