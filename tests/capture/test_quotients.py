"""Sizes that are multiples are captured by their quotients, and the ONNX model has whole axes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchport as tp
from torchport.capture.quotients import Split, join_inputs
from torchport.irtools.types import tensor_infos
from torchport.results import Dim


class Halving(nn.Module):
    """As a U-Net: three times to half the size and back, with the sizes of before beside; then windows of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 2, 3, 2, 1) for _ in range(3)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 if n else 2, 2, 2, 2) for n in range(3)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = []
        for layer in self.down:
            kept.append(x)
            x = functional.relu(layer(x))
        for layer in self.up:
            x = torch.cat([layer(x), kept.pop()], 1)
        batch, channels, height, width = x.shape
        windows = x.view(batch, channels, height // 8, 8, width // 8, 8).mean((3, 5))
        return windows, x * (height / width)


DYNAMIC = {"x": {0: "batch", 2: "height", 3: "width"}}


@pytest.mark.parametrize("size", [(8, 24), (16, 24), (32, 16)])
def test_a_network_that_halves_is_captured_without_a_doubt(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = Halving().eval()
    exported = tp.export(model, (torch.randn(2, 2, *size),), dynamic=DYNAMIC)
    assert exported.route == "export"
    assert not [case for case in exported.proof.cases if case.label.startswith("doubt")]
    assert [info.shape for info in exported.outputs] == [
        ("batch", 4, "(height//8)", "(width//8)"),
        ("batch", 4, "height", "width"),
    ]
    (image,) = exported.model.graph.inputs
    assert {"Reshape"}.isdisjoint(node.op_type for node, _ in image.uses())
    session = tp.session(exported.model)
    for height, width in ((8, 8), (40, 16), (24, 72)):
        x = torch.randn(3, 2, height, width)
        for own, theirs in zip(session(x), model(x), strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_is_not_frozen_beside_sizes_that_are_multiples(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[tuple[int, ...]] = []
    plain = torch.export.export

    def watched(module: nn.Module, given: tuple[Tensor, ...], **options: Any) -> Any:
        captured.append(tuple(given[0].shape))
        return plain(module, given, **options)

    monkeypatch.setattr(torch.export, "export", watched)
    exported = tp.export(Halving().eval(), (torch.randn(1, 2, 8, 8),), dynamic=DYNAMIC)
    assert exported.route == "export"
    assert [n for shape in captured for n in shape if n < 2] == []


class Windowed(Halving):
    """Windows of 3, or of the whole where that is less."""

    def forward(self, x: Tensor) -> Tensor:
        whole, _ = super().forward(x)
        height, width = whole.shape[2:]
        window = 3
        if height <= window:
            window = height
        padded = functional.pad(whole, (0, 0, 0, (window - height % window) % window))
        rows = padded.shape[2] // window
        return padded.view(x.shape[0], 4, rows, window, width).softmax(3)


@pytest.mark.parametrize("size", [(16, 24), (8, 8), (64, 32)])
def test_a_condition_that_the_example_answers_otherwise_than_larger_sizes_is_kept(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = Windowed().eval()
    exported = tp.export(model, (torch.randn(2, 2, *size),), dynamic=DYNAMIC)
    assert exported.route == "rewrite"
    if size[0] < 32:
        assert "the example answers it otherwise" in exported.attempts[0].reason
    session = tp.session(exported.model)
    for height, width in ((8, 8), (40, 16), (24, 72)):
        x = torch.randn(3, 2, height, width)
        torch.testing.assert_close(session(x), model(x), rtol=1e-4, atol=1e-5)


class Measured(Halving):
    """Refuses what is too large, and takes long."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] > 60:
            raise ValueError("the picture is too large")
        return super().forward(x)[1]


def test_a_capture_at_sizes_at_which_the_model_did_not_run_is_made_at_others_if_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchport.verification.verifier.Verifier._allows", lambda _, sizes: sizes["height"] < 60)
    said: list[str] = []
    model = Measured().eval()
    exported = tp.export(model, (torch.randn(2, 2, 16, 16),), dynamic=DYNAMIC, progress=lambda x: said.append(str(x)))
    assert exported.route == "export"
    assert exported.proof.passed
    assert not [text for text in said if "other sizes" in text]


class Guided(nn.Module):
    """A picture and its latent, of an eighth of its size; a branch on values takes the picture."""

    def forward(self, picture: Tensor, latent: Tensor) -> Tensor:
        small = functional.avg_pool2d(picture, 8)
        if latent.sum() > 0:
            small = small + picture[:, :, ::8, ::8]
        return small.repeat(1, 2, 1, 1) * latent


@pytest.mark.parametrize(
    "dynamic",
    [
        {"picture": {0: "batch", 2: "height", 3: "width"}, "latent": {0: "batch", 2: "rows", 3: "columns"}},
        ("picture:0=batch,2=8*rows,3=8*columns", "latent:0=batch,2=rows,3=columns"),
    ],
)
def test_inputs_of_which_one_is_a_multiple_of_the_other(dynamic: Any) -> None:
    model = Guided().eval()
    example = (torch.randn(2, 1, 16, 24), torch.randn(2, 2, 2, 3))
    exported = tp.export(model, example, dynamic=dynamic)
    session = tp.session(exported.model)
    for rows, columns in ((1, 1), (2, 3), (5, 2)):
        given = torch.randn(3, 1, 8 * rows, 8 * columns), torch.randn(3, 2, rows, columns)
        for sign in (1, -1):
            latent = sign * given[1].abs()
            torch.testing.assert_close(session(given[0], latent), model(given[0], latent), rtol=1e-4, atol=1e-5)


def test_sizes_of_what_torch_got_are_computed_from_the_input() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[b, k, 4, 3] x) => (int64[4] all, int64[1] last, int64[2] first, float[b, "4*k", 3] y, float[b, k, 4, 3] z)
    {
        all = Shape(x)
        last = Shape<start = -1>(x)
        first = Shape<start = 1, end = 3>(x)
        whole = Constant<value = int64[3] {0, -1, 3}>()
        y = Reshape(x, whole)
        z = Neg(x)
    }"""
    model = ir.from_onnx_text(text)
    joined = next(node for node in model.graph if node.op_type == "Reshape").outputs[0]
    joined.shape = ir.Shape(["b", "4*k", 3])
    join_inputs(model, ["x"], {"x": [Split(1, 4, Dim("n"), 4)]})
    assert [info.shape for info in tensor_infos(model.graph.inputs)] == [("b", "k_root", 3)]
    x = torch.randn(2, 20, 3)
    sizes, last, first, y, z = tp.session(model)(x)
    assert (sizes.tolist(), last.tolist(), first.tolist()) == ([2, 5, 4, 3], [3], [5, 4])
    assert torch.equal(y, x)
    assert torch.equal(z, -x.reshape(2, 5, 4, 3))
    assert [info.shape for info in tensor_infos(model.graph.outputs)][3:] == [
        ("b", "k_root", 3),
        ("b", "(k_root//4)", 4, 3),
    ]
