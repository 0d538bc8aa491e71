"""aten::fft_fft, fft_ifft, fft_fft2, fft_ifft2, fft_fftn, fft_ifftn to other sizes, aten::fft_ihfft2, fft_ihfftn

    fftn(x)   = fft along one axis after the other, of x cut or filled up with zeros to the sizes asked for
    ihfftn(x) = ihfft along the last axis, then ifft along the others

Torch's exporter translates transforms along one axis, but neither the filling up of complex numbers nor the conjugate
that ihfftn ends with.

Source of truth: ATen's native/SpectralOps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchport.operators.composition import only_where
from torchport.operators.registration import composes


def along_axes(inverse: bool, default: Sequence[int] | None) -> Callable[..., Any]:
    """The composition of fftn or ifftn; `default` are the axes if none are named, all for None."""

    @only_where(lambda self, s=None, dim=default, norm=None: s is not None)
    def transform(self: Any, s: Any = None, dim: Any = default, norm: str | None = None) -> Any:
        axes = _axes(self, s, dim)
        return _transformed(_resized(self, s, axes), axes, norm, inverse)

    return transform


def along_one(inverse: bool) -> Callable[..., Any]:
    """The composition of fft or ifft of complex numbers to another size."""

    @only_where(lambda self, n=None, dim=-1, norm=None: n is not None and self.is_complex())
    def transform(self: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
        return _transformed(_resized(self, [n], [dim]), [dim], norm, inverse)

    return transform


def hermitian_inverse(default: Sequence[int] | None) -> Callable[..., Any]:
    """The composition of ihfftn."""

    def transform(self: Any, s: Any = None, dim: Any = default, norm: str | None = None) -> Any:
        axes = _axes(self, s, dim)
        resized = _resized(self, s, axes) if s is not None else self
        last = torch.fft.ihfft(resized, dim=axes[-1], norm=norm)
        return _transformed(last, axes[:-1], norm, inverse=True)

    return transform


def _axes(x: Any, s: Sequence[Any] | None, dim: Sequence[int] | None) -> list[int]:
    if dim is not None:
        return [axis % x.dim() for axis in dim]
    return list(range(x.dim() - (len(s) if s is not None else x.dim()), x.dim()))


def _transformed(x: Any, axes: Sequence[int], norm: str | None, inverse: bool) -> Any:
    transform: Any = torch.fft.ifft if inverse else torch.fft.fft
    for axis in reversed(axes):
        x = transform(x, dim=axis, norm=norm)
    return x


def _resized(x: Any, sizes: Sequence[Any], axes: Sequence[int]) -> Any:
    """Cut, or with zeros after the last number; -1 is the size it has."""
    parts = torch.view_as_real(x) if x.is_complex() else x
    for size, axis in zip(sizes, axes, strict=True):
        place = axis % x.dim()
        own = parts.shape[place]
        if isinstance(size, int) and (size == -1 or (isinstance(own, int) and size == own)):
            continue
        varies = not (isinstance(size, int) and isinstance(own, int))
        if varies or size > own:  # as many zeros as there may be room for, if that varies
            more = size if varies else size - own
            zeros = parts.new_zeros([more if a == place else n for a, n in enumerate(parts.shape)])
            parts = torch.cat([parts, zeros], place)
        parts = parts.narrow(place, 0, size)
    return torch.view_as_complex(parts.contiguous()) if x.is_complex() else parts


composes("aten::fft_fft.default")(along_one(inverse=False))
composes("aten::fft_ifft.default")(along_one(inverse=True))
composes("aten::fft_fft2.default")(along_axes(inverse=False, default=(-2, -1)))
composes("aten::fft_ifft2.default")(along_axes(inverse=True, default=(-2, -1)))
composes("aten::fft_fftn.default")(along_axes(inverse=False, default=None))
composes("aten::fft_ifftn.default")(along_axes(inverse=True, default=None))
composes("aten::fft_ihfft2.default")(hermitian_inverse(default=(-2, -1)))
composes("aten::fft_ihfftn.default")(hermitian_inverse(default=None))
