"""Codecs, separation and spectra as audio libraries write them, at a batch and a length that vary."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchport as tp

SAMPLES = {"x": {0: "batch", 2: "samples"}}


def _check(exported: tp.Exported, model: nn.Module, *inputs: Tensor) -> None:
    session = tp.session(exported.model)
    for x in inputs:
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-4)


class Segments(nn.Module):
    """As EnCodec: all in one segment, whose length is the input's, with no scale beside its code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)

    def encode(self, x: Tensor) -> list[tuple[Tensor, None]]:
        length = x.shape[-1]
        frames = []
        for offset in range(0, length, length):
            frames.append((self.conv(x[:, :, offset : offset + length]), None))
        assert isinstance(range(3), range)
        return frames

    def forward(self, x: Tensor) -> Tensor:
        frames = self.encode(x)
        assert len(frames) == 1
        code, scale = frames[0]
        return code if scale is None else code * scale


def test_a_loop_over_one_segment_of_the_whole_length_runs_once() -> None:
    model = Segments().eval()
    exported = tp.export(model, (torch.randn(2, 1, 40),), dynamic=SAMPLES)
    assert exported.route == "export"
    _check(exported, model, torch.randn(1, 1, 7), torch.randn(3, 1, 99))


class Decoder(nn.ConvTranspose1d):
    """As in SepFormer: a batch of one is brought back after the squeeze that loses it."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y = super().forward(x)
        return y.squeeze(1) if y.squeeze().dim() == 1 else y.squeeze()


class Separated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, 4, 8, 4), Decoder(4, 1, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.encoder(x)
        return torch.stack([self.decoder(y), self.decoder(y.relu())], dim=-1)


def test_a_squeeze_that_is_undone_for_a_batch_of_one_keeps_the_batch() -> None:
    model = Separated().eval()
    exported = tp.export(model, (torch.randn(2, 1, 40),), dynamic=SAMPLES)
    _check(exported, model, torch.randn(1, 1, 40), torch.randn(1, 1, 80), torch.randn(3, 1, 24))


class Squeezed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(2).squeeze()


def test_a_squeeze_that_loses_a_batch_of_one_loses_it_in_onnx_too() -> None:
    exported = tp.export(Squeezed(), (torch.randn(2, 1, 40),), dynamic=SAMPLES)
    _check(exported, Squeezed(), torch.randn(1, 1, 40), torch.randn(3, 1, 24))


class Spectrum(nn.Module):
    """As in HDemucs: a reflected signal, checked against the one it was made of, and its frames."""

    def forward(self, x: Tensor) -> Tensor:
        hop, length = 16, x.shape[-1]
        frames = math.ceil(length / hop)
        y = functional.pad(x, (24, 24 + frames * hop - length), mode="reflect")
        assert (y[..., 24 : 24 + length] == x).all()
        z = torch.stft(y.flatten(0, 1), 64, hop, window=torch.hann_window(64), return_complex=True, normalized=True)
        z = z.view(*y.shape[:-1], *z.shape[1:])[..., :-1, 2 : 2 + frames]
        assert z.shape[-1] == frames, (z.shape, frames)
        return torch.view_as_real(z)


def test_an_assertion_on_values_is_left_out_and_said() -> None:
    model = Spectrum()
    exported = tp.export(model, (torch.randn(2, 2, 200),), dynamic=SAMPLES)
    _check(exported, model, torch.randn(1, 2, 131), torch.randn(3, 2, 320))
    assert any(
        "assertion" in finding.message and "test_audio_models.py" in finding.where for finding in exported.findings
    )


class Strided(nn.Module):
    """As in HDemucs: each layer pads to its stride first, and asks so that no rest means no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(2, 2, 8, 4, 2) for _ in range(2))

    def padded(self, x: Tensor, stride: int) -> Tensor:
        length = x.shape[-1]
        if not length % stride == 0:  # noqa: SIM201 - as the library writes it
            x = functional.pad(x, (0, stride - (length % stride)))
        return x

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(self.padded(x, 4))
        return x.view(x.shape[0], -1)


def test_padding_to_a_stride_is_kept_with_its_size_known() -> None:
    model = Strided().eval()
    exported = tp.export(model, (torch.randn(2, 2, 64),), dynamic=SAMPLES)
    assert exported.route == "rewrite"
    _check(exported, model, torch.randn(1, 2, 61), torch.randn(3, 2, 128), torch.randn(3, 2, 35))


class DualPath(nn.Module):
    """As in DPRNN and SepFormer: segments that overlap by half, after padding to a multiple of their length."""

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, length = x.shape
        gap = 8 - (4 + length % 8) % 8
        if gap > 0:
            x = torch.cat([x, torch.zeros(batch, channels, gap)], dim=2)
        ends = torch.zeros(batch, channels, 4)
        x = torch.cat([ends, x, ends], dim=2)
        first = x[:, :, :-4].contiguous().view(batch, channels, -1, 8)
        second = x[:, :, 4:].contiguous().view(batch, channels, -1, 8)
        return torch.cat([first, second], dim=3).view(batch, channels, -1, 8).transpose(2, 3)


def test_overlapping_segments_are_cut_at_every_length() -> None:
    exported = tp.export(DualPath(), (torch.randn(2, 3, 40),), dynamic=SAMPLES)
    _check(exported, DualPath(), torch.randn(1, 3, 40), torch.randn(1, 3, 37), torch.randn(3, 3, 20))
