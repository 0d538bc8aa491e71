"""Fourier transforms along several axes, and to other sizes."""

from __future__ import annotations

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


KINDS = [f"{kind}fft{axes}" for kind in ("", "i", "r", "ir", "h", "ih") for axes in ("", "2", "n")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_transform_in_pairs_gives_the_same(kind: str) -> None:
    operator = getattr(aten, f"fft_{kind}").default
    form = library.file("fft").transform
    takes_complex = kind[:1] != "r" and not kind.startswith("ih")
    several = kind[-1] in "2n"
    for norm in NORMS:
        for dtype in (torch.float64, torch.complex128) if takes_complex else (torch.float64,):
            x = torch.randn(3, 4, 5, dtype=dtype)
            for s, dim in (((6, 3), (0, 2)), ((-1, 9), (1, 2)), (None, (-2, -1))) if several else ((7, 1), (None, -1)):
                got, want = form(operator, x, s, dim, norm), operator(x, s, dim, norm)
                torch.testing.assert_close(got, want, msg=f"{kind} {norm} {dtype} {s} {dim}")


@pytest.mark.parametrize("options", [{}, {"normalized": True, "center": False}, {"win_length": 12}])
def test_stft_and_istft_at_lengths_not_seen(options: dict[str, Any]) -> None:
    window = torch.hann_window(options.get("win_length", 16)) + 0.1

    def filtered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True, **options)
        longer = x.shape[-1] + 3
        return spectrum.abs(), torch.istft(spectrum * 0.5, 16, 4, window=window, length=longer, **options)

    exported = tp.export(filtered, (torch.randn(2, 60),), dynamic={"x": {0: "b", 1: "t"}}, route="export")
    session = tp.session(exported.model)
    for b, t in ((1, 33), (3, 100)):
        x = torch.randn(b, t)
        for got, want in zip(plain(session(x)), plain(filtered(x)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_shifts_and_frequencies_of_sizes_that_vary() -> None:
    def shifted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[1]
        both = torch.fft.fftshift(x), torch.fft.ifftshift(x, dim=-1)
        return *both, x * torch.fft.fftfreq(n, 0.5), x[:, : n // 2 + 1] * torch.fft.rfftfreq(n)

    exported = tp.export(shifted, (torch.randn(2, 8),), dynamic={"x": {0: "b", 1: "t"}}, route="export")
    session = tp.session(exported.model)
    for shape in ((1, 5), (3, 12)):
        x = torch.randn(shape)
        for got, want in zip(plain(session(x)), plain(shifted(x)), strict=True):
            torch.testing.assert_close(got, want)
