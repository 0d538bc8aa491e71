"""Complex numbers cross the border as pairs of real ones."""

from __future__ import annotations

import numpy as np
import torch

import torchport as tp


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spectrum = torch.fft.rfft(x)
        return spectrum, spectrum.abs()


class Turned(torch.nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * 1j + z.real


def test_a_complex_output_is_a_last_axis_of_two() -> None:
    x = torch.randn(3, 8)
    exported = tp.export(Spectrum(), (x,), dynamic={"x": {0: "n"}}, output_names=["spectrum", "size"])
    assert [o.shape for o in exported.outputs] == [("n", 5, 2), ("n", 5)]
    assert any("output 'spectrum' is complex" in str(f) for f in exported.findings)
    got = tp.session(exported.model).run({"x": torch.cat([x, x]).numpy()})["spectrum"]
    np.testing.assert_allclose(got, torch.view_as_real(torch.fft.rfft(torch.cat([x, x]))).numpy(), atol=1e-5)


def test_a_complex_input_is_given_in_pairs() -> None:
    z = torch.randn(4, 2, dtype=torch.complex64)
    exported = tp.export(Turned(), (z,), dynamic={"z": {0: "n"}})
    assert exported.inputs[0].shape == ("n", 2, 2)
    assert any("input 'z' is complex" in str(f) for f in exported.findings)
    got = tp.session(exported.model).run({"z": torch.view_as_real(z).numpy()})["output"]
    np.testing.assert_allclose(got, torch.view_as_real(z * 1j + z.real).numpy(), atol=1e-6)
