"""Complex numbers inside a model: in parts, and with the real numbers in and out that ONNX has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchport as tp
from torchport.errors import CaptureError
from torchport.operators import library
from torchport.process import silence

Function = Callable[[Tensor], Any]
VARIES = torch.export.Dim.AUTO


def in_parts(function: Function, x: Tensor) -> torch.export.ExportedProgram:
    """The program of a function of complex numbers, in parts; its first two axes vary."""

    class Model(nn.Module):
        def forward(self, pairs: Tensor) -> Any:
            return function(torch.view_as_complex(pairs))

    pairs = torch.view_as_real(x)
    with silence():
        program = torch.export.export(Model(), (pairs,), dynamic_shapes=({0: VARIES, 1: VARIES},))
        found: torch.export.ExportedProgram = library.file("complex_numbers").in_parts(program, {})
    return found


def real(outputs: Any) -> list[Tensor]:
    tensors = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]


WEIGHT = torch.randn(4, 3, dtype=torch.complex64)
FUNCTIONS: dict[str, Function] = {
    "arithmetic": lambda z: ((z * z + 2 - 1j) / (z + 3), 1j * z.real, 2 - z, z / 2, z.real / (z + 4), -z),
    "powers": lambda z: (z**2, z**-1, z**1.5, z.sqrt(), z.reciprocal(), z.square(), 2**z, z.rsqrt()),
    "functions": lambda z: (z.exp(), z.log(), z.sin(), z.cos(), z.tan(), z.sinh(), z.cosh(), z.tanh(), z.sigmoid()),
    "directions": lambda z: (z.abs(), z.angle(), z.conj(), z.sgn(), torch.polar(z.real, z.imag), z.log10()),
    "products": lambda z: (z @ WEIGHT, z @ z.mH, torch.einsum("abc,cd,abd->ad", z, WEIGHT, z[..., :3])),
    "sums": lambda z: (z.sum(1), z.mean(-1), z.cumsum(1), z.prod(2), z.sum(), z.norm(dim=-1), z.var(-1), z.std(-1)),
    "choices": lambda z: (
        torch.where(z.real > 0, z, 0),
        z.masked_fill(z.imag > 0, 1 + 2j),
        z[:, [0, 0]],
        z.flip(1),
        z.roll(1, 2),
        torch.cat([z, z.conj()], 1),
        torch.stack([z, z]),
        nn.functional.pad(z, (1, 2), value=3.0),
        z.transpose(1, 2).reshape(z.shape[0], -1),
    ),
    "made of real ones": lambda z: (
        torch.ones_like(z) * 1j,
        torch.zeros(3, dtype=z.dtype) + z[0, 0, 0],
        torch.complex(z.real, z.imag),
        z.real.to(torch.complex64),
        torch.full((2,), 1 - 1j) * z[0, 0, 0],
    ),
    "compared": lambda z: (z == z, z != z.conj(), torch.isnan(z), torch.isfinite(z), (z != 0).all()),
    "solved": lambda z: (
        torch.linalg.inv(z @ z.mH + 3 * torch.eye(z.shape[1])),
        torch.linalg.solve(z.mH @ z + 3 * torch.eye(4), z.mH),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_in_parts_give_the_same_at_sizes_not_seen(name: str) -> None:
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    program = in_parts(function, torch.randn(2, 5, 4, dtype=torch.complex64))
    with silence():
        module: Any = program.module()
    for shape in ((2, 5, 4), (3, 7, 4)):
        z = torch.randn(shape, dtype=torch.complex64)
        for got, want in zip(real(module(torch.view_as_real(z))), real(function(z)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_no_operator_but_views_is_left_complex() -> None:
    program = in_parts(lambda z: (z * z).exp().abs(), torch.randn(2, 5, 4, dtype=torch.complex64))
    values = [n.meta["val"] for n in program.graph.nodes if n.op == "call_function"]
    assert not any(v.is_complex() for v in values if isinstance(v, Tensor))


def test_a_program_of_real_numbers_is_left_as_it_is() -> None:
    program = torch.export.export(nn.Linear(3, 4), (torch.randn(2, 3),))
    assert library.file("complex_numbers").in_parts(program, {}) is program


def test_an_operator_without_a_form_in_parts_is_refused_by_name() -> None:
    with pytest.raises(CaptureError, match=r"no ONNX translation for .*linalg_qr.* of complex numbers"):
        in_parts(lambda z: torch.linalg.qr(z).R.abs(), torch.randn(2, 4, 4, dtype=torch.complex64))


class Spectral(nn.Module):
    """A Fourier layer: some modes are mixed by complex weights, the others dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], 2, modes.shape[-1], dtype=modes.dtype)
        out[:, :, :4] = torch.einsum("bix,iox->box", modes[:, :, :4], self.weight)
        return torch.fft.irfft(out * torch.exp(1j * out.abs()), n=x.shape[-1])


def test_a_fourier_layer_at_lengths_not_seen() -> None:
    torch.manual_seed(0)
    model = Spectral()
    exported = tp.export(model, (torch.randn(2, 3, 16),), dynamic={"x": {0: "b", 2: "t"}}, route="export")
    session = tp.session(exported.model)
    for b, t in ((1, 9), (3, 30)):
        x = torch.randn(b, 3, t)
        torch.testing.assert_close(torch.as_tensor(session(x)), model(x).detach(), rtol=1e-3, atol=1e-4)


def test_the_angle_of_a_negative_number_is_pi_and_of_its_conjugate_minus_pi() -> None:
    def angles(y: Tensor, x: Tensor) -> Tensor:
        return torch.atan2(y, x)

    y = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 2.0, 0.0])
    x = torch.tensor([-1.0, -1.0, 1.0, 1.0, 0.0, 0.0, -3.0, 0.0])
    session = tp.session(tp.export(angles, (y, x), dynamic={"y": {0: "n"}, "x": {0: "n"}}, route="export").model)
    torch.testing.assert_close(torch.as_tensor(session(y, x)), torch.atan2(y, x))


class Picked(nn.Module):
    """Asks a complex tensor for a size that only its values tell."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x)
        kept = z[z.real > 0] * 1j
        return torch.view_as_real(kept) / (kept.shape[0] + 1)


def test_the_size_of_a_complex_tensor_is_that_of_its_parts() -> None:
    exported = tp.export(Picked(), (torch.randn(5, 2),), dynamic={"x": {0: "n"}})
    session = tp.session(exported.model)
    for n in (1, 4, 9):
        x = torch.randn(n, 2)
        torch.testing.assert_close(session(x), Picked()(x))
