"""Fourier transforms along several axes, and to other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchport as tp
from torchport.operators import library

aten: Any = torch.ops.aten
NORMS = (None, "ortho", "forward")


def plain(outputs: Any) -> list[torch.Tensor]:
    tensors = [torch.as_tensor(t) for t in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]


def spectra(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.fft.fftn(x, (3, 5), norm="ortho")
    return y, torch.fft.ifft(y, 8), torch.fft.ihfft2(x, (6, -1), norm="forward")


def test_to_other_sizes_at_batches_not_seen() -> None:
    dynamic = {"x": {0: "n", 1: "m"}}
    session = tp.session(tp.export(spectra, (torch.randn(2, 4, 4),), dynamic=dynamic, route="export").model)
    for n, m in ((2, 4), (1, 2), (5, 9)):  # m is filled up, and cut
        x = torch.randn(n, m, 4)
        for got, want in zip(plain(session(x)), plain(spectra(x)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sizes", [((6, 3), (0, 2)), ((2,), (-1,)), ((-1, 9), None)])
def test_formulas(dtype: torch.dtype, norm: str | None, sizes: Any) -> None:
    x = torch.randn(3, 4, 5, dtype=dtype)
    s, dim = sizes
    forms: list[Callable[..., Any]] = [aten.fft_fftn.default, aten.fft_ifftn.default]
    forms += [] if dtype.is_complex else [aten.fft_ihfftn.default]
    for operator in forms:
        got = library.compositions()[operator](x, s, dim, norm)
        torch.testing.assert_close(got, operator(x, s, dim, norm))


def test_without_sizes_it_is_left_to_torch() -> None:
    assert library.compositions()[aten.fft_fftn.default](torch.randn(3, 4)) is NotImplemented
