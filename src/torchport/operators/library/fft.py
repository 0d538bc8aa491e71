"""Fourier transforms: all of torch.fft, stft and istft, of sizes that may vary.

    fftn(x)   = fft along one axis after the other, of x cut or filled up with zeros to the given sizes
    irfftn(x) = ifft along the other axes, then the second half of the last one filled in, and ifft along it
    hfft(x)   = fft of the numbers whose second half is filled in;  ihfft(x) = the conjugate of rfft, divided

Source of truth: ATen's native/SpectralOps.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from torchport.operators.composition import only_where
from torchport.operators.library.complex_numbers import rule
from torchport.operators.registration import composes, replaces, translates
from torchport.torch_compat import registries
from torchport.torch_compat.shape_env import surely

# torchport::dft
#
#     ONNX's DFT along one axis, of numbers whose two parts are in a last axis; of real numbers, with one part there
#
# The inverse is divided by the size. `onesided` leaves out the second half, which real numbers have no need of. ONNX
# has no inverse of that half: `_hermitian` fills it in again.
#
# Torch's translations give ONNX Runtime such an inverse, with another size than ONNX infers for it.

op: Any = opset18  # its annotations know eager tensors only, not a graph's values
aten: Any = torch.ops.aten

_library = torch.library.Library("torchport", "FRAGMENT")
_library.define("dft(Tensor pairs, int axis, bool inverse, bool onesided) -> Tensor")


@torch.library.register_fake("torchport::dft", lib=_library)
def _dft_shape(pairs: Any, axis: int, inverse: bool, onesided: bool) -> Any:
    shape = [*pairs.shape[:-1], 2]
    if onesided:
        shape[axis] = shape[axis] // 2 + 1
    return pairs.new_empty(shape)


def _dft_computed(pairs: torch.Tensor, axis: int, inverse: bool, onesided: bool) -> torch.Tensor:
    x = torch.view_as_complex(pairs.contiguous()) if pairs.shape[-1] == 2 else pairs.squeeze(-1)
    transform: Any = torch.fft.rfft if onesided else torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(transform(x, dim=axis)).clone()


torch.library.impl("torchport::dft", "CompositeExplicitAutograd", _dft_computed, lib=_library)


@translates("torchport::dft.default")
def dft(pairs: Any, axis: int, inverse: bool, onesided: bool) -> Any:
    """Translate one call; ONNX Runtime takes the first axis for that of the batch, so another is put before it."""
    first = op.Constant(value_ints=[0])
    x = op.Unsqueeze(pairs, first) if axis == 0 else pairs
    x = op.DFT(x, axis=max(axis, 1), inverse=int(inverse), onesided=int(onesided))
    return op.Squeeze(x, first) if axis == 0 else x


def _pairs(x: Any) -> Any:
    return aten.view_as_real.default(x) if x.is_complex() else _floating(x).unsqueeze(-1)


def _floating(x: Any) -> Any:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _complex(pairs: Any) -> Any:
    return aten.view_as_complex.default(pairs)


def _scaled(pairs: Any, size: Any, power: float) -> Any:
    """Multiplied by a power of the size."""
    if power == 0:
        return pairs
    if isinstance(size, int):
        return pairs * float(size) ** power
    return pairs * torch.full((), size, dtype=pairs.dtype, device=pairs.device) ** power


def _power(norm: str | None, inverse: bool) -> float:
    """The power of the size that a transform without its own factor is multiplied by."""
    if norm == "ortho":
        return -0.5
    return -1.0 if (norm or "backward") == ("backward" if inverse else "forward") else 0.0


def _both_ways(pairs: Any, axes: Sequence[int], inverse: bool) -> Any:
    """Along some axes, without a factor."""
    for axis in reversed(axes):
        size = pairs.shape[axis]
        pairs = torch.ops.torchport.dft.default(pairs, axis, inverse, False)
        pairs = _scaled(pairs, size, 1.0 if inverse else 0.0)
    return pairs


def _from_real(pairs: Any, axis: int, onesided: bool) -> Any:
    """Of real numbers; the sum of all, and that with alternating signs, are real as well."""
    return _with_real_ends(torch.ops.torchport.dft.default(pairs, axis, False, onesided), pairs.shape[axis], axis)


def _with_real_ends(found: Any, size: Any, axis: int) -> Any:
    """Without the rounding errors in imaginary parts that are zero: the angle there is 0 or π, and not -π."""
    place = torch.arange(found.shape[axis], device=found.device)
    is_real = (place == 0) | (2 * place == size)
    shape = [-1 if a == axis else 1 for a in range(found.dim())]
    parts = torch.arange(2, device=found.device)
    return torch.where(is_real.reshape(shape) & (parts == 1), 0.0, found)


def _hermitian(pairs: Any, size: Any, axis: int) -> Any:
    """`size` numbers of the first half: the others are their conjugates, backwards."""
    half = size // 2 + 1
    first = pairs.narrow(axis, 0, half)
    others = pairs.narrow(axis, 1, size - half).flip(axis)
    return torch.cat([first, others * _signs(pairs)], axis)


def _signs(pairs: Any) -> Any:
    """Multiplied by it, a pair is that of the conjugate."""
    return 1 - 2 * torch.arange(2, dtype=pairs.dtype, device=pairs.device)


def _to_real(pairs: Any, size: Any, axis: int, inverse: bool) -> Any:
    """Of the first half of what real numbers give, the real numbers, without a factor."""
    full = _hermitian(pairs, size, axis)
    return _both_ways(full, [axis], inverse).select(-1, 0)


def _product(numbers: Sequence[Any]) -> Any:
    return math.prod(numbers)


@rule(*(f"fft_{kind}fft{axes}" for kind in ("", "i", "r", "ir", "h", "ih") for axes in ("", "2", "n")))
def transform(operator: Any, self: Any, s: Any = None, dim: Any = None, norm: str | None = None, **named: Any) -> Any:
    """Every transform of torch.fft, on pairs."""
    kind, several = _kind(operator)
    s = named.get("n", s)
    axes = _axes(self, s, dim, several)
    sizes = list(s) if isinstance(s, (list, tuple)) else [s] if s is not None else [-1] * len(axes)
    pairs = _pairs(self)
    inverse = kind in ("i", "ir", "ih")
    if kind in ("ir", "h"):
        return _real_result(pairs, axes, sizes, norm, inverse)
    pairs = _of_sizes(pairs, sizes, axes)
    power, size = _power(norm, inverse), _product([pairs.shape[axis] for axis in axes])
    if kind in ("r", "ih") or not self.is_complex():
        found = _from_real(pairs, axes[-1], onesided=kind in ("r", "ih"))
        if inverse:
            found = found * _signs(found)
        found = _both_ways(found, axes[:-1], inverse)
    else:
        found = _both_ways(pairs, axes, inverse)
    return _complex(_scaled(found, size, power))


def _kind(operator: Any) -> tuple[str, str]:
    """``fft_ihfft2``: "ih" and "2"."""
    name = str(registries.schema(operator).name).partition("::fft_")[2]
    kind, _, several = name.partition("fft")
    return kind, several


def _axes(x: Any, s: Any, dim: Any, several: str) -> list[int]:
    if not several:
        return [(-1 if dim is None else dim) % x.dim()]
    if dim is None and several == "2":
        dim = (-2, -1)
    if dim is not None:
        return [axis % x.dim() for axis in dim]
    return list(range(x.dim() - (len(s) if s is not None else x.dim()), x.dim()))


def _real_result(pairs: Any, axes: Sequence[int], sizes: Sequence[Any], norm: Any, inverse: bool) -> Any:
    """irfft and hfft: the last size is that of the result."""
    last = sizes[-1] if not _is_own(sizes[-1]) else 2 * (pairs.shape[axes[-1]] - 1)
    if pairs.shape[-1] == 1:
        pairs = torch.cat([pairs, torch.zeros_like(pairs)], -1)
    pairs = _of_sizes(pairs, [*sizes[:-1], last // 2 + 1], axes)
    size = _product([*(pairs.shape[axis] for axis in axes[:-1]), last])
    pairs = _both_ways(pairs, axes[:-1], inverse)
    return _scaled(_to_real(pairs, last, axes[-1], inverse), size, _power(norm, inverse))


def _is_own(size: Any) -> bool:
    return size is None or (isinstance(size, int) and size == -1)


def _of_sizes(pairs: Any, sizes: Sequence[Any], axes: Sequence[int]) -> Any:
    for size, axis in zip(sizes, axes, strict=True):
        if not _is_own(size):
            pairs = _filled(pairs, size, axis)
    return pairs


def _is_same(a: Any, b: Any) -> bool:
    """Check that two sizes are one; what torch settled of a size that varies beside a number does not count."""
    return type(a) is type(b) and surely(a == b)


def _filled(x: Any, size: Any, axis: int) -> Any:
    """Cut, or with zeros after the last number."""
    own = x.shape[axis]
    varies = not (isinstance(own, int) and isinstance(size, int))
    if _is_same(own, size):
        return x
    if varies or size > own:  # as many zeros as there may be need of, if that varies
        zeros = x.new_zeros([(size if varies else size - own) if a == axis else n for a, n in enumerate(x.shape)])
        x = torch.cat([x, zeros], axis)
    return x.narrow(axis, 0, size)


@rule("_fft_r2c")
def fft_r2c(operator: Any, self: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    pairs, axes = _pairs(self), [axis % self.dim() for axis in dim]
    size = _product([self.shape[axis] for axis in axes])
    found = _both_ways(_from_real(pairs, axes[-1], onesided), axes[:-1], inverse=False)
    return _complex(_scaled(found, size, -normalization / 2))


@rule("_fft_c2c")
def fft_c2c(operator: Any, self: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    axes = [axis % self.dim() for axis in dim]
    size = _product([self.shape[axis] for axis in axes])
    return _complex(_scaled(_both_ways(_pairs(self), axes, not forward), size, -normalization / 2))


@rule("_fft_c2r")
def fft_c2r(operator: Any, self: Any, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Any:
    axes = [axis % self.dim() for axis in dim]
    size = _product([*(self.shape[axis] for axis in axes[:-1]), last_dim_size])
    pairs = _both_ways(_pairs(self), axes[:-1], inverse=True)
    pairs = _filled(pairs, last_dim_size // 2 + 1, axes[-1])
    return _scaled(_to_real(pairs, last_dim_size, axes[-1], inverse=True), size, -normalization / 2)


# aten::stft
#
#     ONNX's STFT, of numbers whose two parts are in a last axis, one for real numbers
#
# Torch's translation gives a complex tensor whose sizes torch.onnx has no translation for.

_library.define("stft(Tensor pairs, Tensor window, int hop, bool onesided) -> Tensor")


@torch.library.register_fake("torchport::stft", lib=_library)
def _stft_shape(pairs: Any, window: Any, hop: int, onesided: bool) -> Any:
    size = window.shape[0]
    frames = (pairs.shape[1] - size) // hop + 1
    return pairs.new_empty([pairs.shape[0], frames, size // 2 + 1 if onesided else size, 2])


@torch.library.impl("torchport::stft", "CompositeExplicitAutograd", lib=_library)
def _stft_computed(pairs: torch.Tensor, window: torch.Tensor, hop: int, onesided: bool) -> torch.Tensor:
    frames = pairs.unfold(1, window.shape[0], hop).transpose(2, 3) * window.unsqueeze(-1)
    return _dft_computed(frames, 2, False, onesided)


@translates("torchport::stft.default")
def short_time(pairs: Any, window: Any, hop: int, onesided: bool) -> Any:
    """Translate one call."""
    step = op.Constant(value=ir.tensor(hop, dtype=ir.DataType.INT64))
    return op.STFT(pairs, step, window, onesided=int(onesided))


@rule("stft")
def stft(
    operator: Any,
    self: Any,
    n_fft: int,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    *others: Any,
    **named: Any,
) -> Any:
    names = [a.name for a in registries.schema(operator).arguments][5:]
    given = {**dict(zip(names, others, strict=False)), **named}
    x = self if self.dim() == 2 else self.unsqueeze(0)
    if given.get("center", False):
        x = torch.nn.functional.pad(x.unsqueeze(1), (n_fft // 2, n_fft // 2), mode=given.get("pad_mode", "reflect"))
        x = x.squeeze(1)
    pairs = _pairs(x)
    own = _whole_window(window, n_fft, win_length, pairs)
    is_complex = self.is_complex() or own.is_complex()
    onesided = not is_complex if given.get("onesided") is None else bool(given["onesided"])
    found = torch.ops.torchport.stft.default(pairs, own, hop_length or n_fft // 4, onesided)
    found = found if is_complex else _with_real_ends(found, n_fft, 2)
    found = _scaled(found, n_fft, -0.5 if given.get("normalized") else 0.0).transpose(1, 2)
    found = found if self.dim() == 2 else found.squeeze(0)
    return _complex(found.contiguous()) if given.get("return_complex") else found


# torch.istft with a length that varies, and aten::istft
#
#     y = Σ frames, each at its place, times the window / Σ of the window's squares there
#
# Torch takes the length for a number, and fixes it.
#
# Source of truth: ATen's native/SpectralOps.cpp.


def _varying_length(input: Any, n_fft: Any, *given: Any, length: Any = None, **_: Any) -> bool:
    length = given[6] if len(given) > 6 else length
    return any(isinstance(number, torch.SymInt) for number in (length, n_fft, *given[:2]))


@replaces("torch.istft", "torch.Tensor.istft")
@only_where(_varying_length)
def istft(
    input: Any,
    n_fft: Any,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    return _overlap_added(
        input, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex
    )


@rule("istft")
def istft_of_program(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return _overlap_added(*args, **kwargs)


def _overlap_added(
    input: Any,
    n_fft: Any,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    if return_complex:
        raise NotImplementedError("torch.istft to complex numbers has no ONNX translation")
    hop = n_fft // 4 if hop_length is None else hop_length
    spectrum = input.unsqueeze(0) if input.dim() == 2 else input
    frames = torch.fft.irfft(spectrum[:, : n_fft // 2 + 1], n_fft, dim=1, norm="ortho" if normalized else "backward")
    window = _whole_window(window, n_fft, win_length, frames)
    weights = (window * window).unsqueeze(-1).expand(1, -1, frames.shape[-1])
    signal, envelope = (_added(x, n_fft, hop) for x in (frames * window.unsqueeze(-1), weights))
    start = n_fft // 2 if center else 0
    end = signal.shape[-1] - start if length is None else start + length
    signal = signal[:, start:end] / envelope[:, start:end]
    if length is not None:
        signal = _filled(signal, length, 1)
    return signal.squeeze(0) if input.dim() == 2 else signal


def _whole_window(window: Any, n_fft: Any, win_length: Any, like: Any) -> Any:
    """As long as a frame, with zeros on both sides."""
    own = n_fft if win_length is None else win_length
    if window is None:
        window = like.new_ones([own])
    left = (n_fft - own) // 2
    return torch.nn.functional.pad(window, (left, n_fft - own - left)) if not _is_same(own, n_fft) else window


def _added(frames: Any, size: Any, hop: Any) -> Any:
    """Frames (batch, size, number) added up, each `hop` after the one before."""
    length = (frames.shape[-1] - 1) * hop + size
    return torch.nn.functional.fold(frames, (1, length), (1, size), stride=(1, hop))[:, 0, 0]


# torch.fft.fftshift, ifftshift, fftfreq, rfftfreq of sizes that vary
#
#     fftshift rolls each axis by half its size, downwards rounded; ifftshift by the other half
#     frequency k of n = k / (n d), and (k - n) / (n d) from the second half on


def shifted(inverse: bool) -> Callable[..., Any]:
    """The composition of fftshift or ifftshift."""

    @only_where(lambda self, dim=None: any(isinstance(size, torch.SymInt) for size in self.shape))
    def shift(self: Any, dim: Sequence[int] | None = None) -> Any:
        for axis in range(self.dim()) if dim is None else dim:
            size = self.shape[axis]
            half = (size + 1) // 2 if inverse else size // 2
            self = torch.cat([self.narrow(axis, size - half, half), self.narrow(axis, 0, size - half)], axis)
        return self

    return shift


composes("aten::fft_fftshift.default")(shifted(inverse=False))
composes("aten::fft_ifftshift.default")(shifted(inverse=True))


@replaces("torch.fft.fftfreq")
@only_where(lambda n, *_, **__: isinstance(n, torch.SymInt))
def fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, **_: Any) -> Any:
    place = torch.arange(n)
    return _frequencies(torch.where(place < (n + 1) // 2, place, place - n), n, d, dtype)


@replaces("torch.fft.rfftfreq")
@only_where(lambda n, *_, **__: isinstance(n, torch.SymInt))
def rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, **_: Any) -> Any:
    return _frequencies(torch.arange(n // 2 + 1), n, d, dtype)


def _frequencies(place: Any, n: Any, d: float, dtype: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    return place.to(dtype) / (torch.full((), n, dtype=dtype) * d)
