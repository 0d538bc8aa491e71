"""Models in other types than float32, and what ONNX Runtime's CPU has no kernel for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from agreement import check
from torch import Tensor, nn
from torch.nn import functional

import torchport as tp
from torchport.engines.onnxruntime.engine import OnnxRuntime


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Network(nn.Module):
    """A convolution, norms, attention, and what is around them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 16, 3, stride=2, padding=1), nn.GroupNorm(2, 16)
        self.qkv, self.last = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.gelu(self.norm(self.conv(x))).transpose(1, 2)
        q, k, v = self.qkv(y).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        y = y + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last(functional.silu(y)), y.relu().amax(1).sum(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_network_in_another_type_keeps_it(tmp_path: Path, dtype: torch.dtype) -> None:
    def x(batch: int, steps: int) -> tuple[Tensor]:
        return (torch.randn(batch, 4, steps).to(dtype),)

    axes = {"x": {0: "batch", 2: "steps"}}
    exported, _ = check(tmp_path, Network().to(dtype).eval(), x(2, 10), [x(1, 7), x(3, 12)], dynamic=axes)
    name = str(dtype).removeprefix("torch.")
    assert {v.dtype for v in (*exported.inputs, *exported.outputs)} == {name}
    found = [str(f) for f in exported.findings if "kernel" in str(f)]
    assert bool(found) == (dtype != torch.float16)
    weights = {v.dtype.name for v in exported.model.graph.initializers.values() if v.name.endswith("weight")}
    assert weights == {{"float64": "DOUBLE"}.get(name, name.upper())}


def test_a_recurrent_network_in_bfloat16(tmp_path: Path) -> None:
    def x(batch: int, steps: int) -> tuple[Tensor]:
        return (torch.randn(batch, steps, 6).bfloat16(),)

    model = nn.LSTM(6, 8, batch_first=True).bfloat16()
    axes = {"input": {0: "batch", 1: "steps"}}
    _, ops = check(tmp_path, model, x(2, 5), [x(1, 9), x(4, 1)], dynamic=axes)
    assert ops["LSTM"] == 1


class Region(nn.Module):
    """float32 weights, computed with in bfloat16 for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        self.short, self.last = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.body(x)
        return self.last(self.short(y.bfloat16()).float())


def test_regions_of_another_type(tmp_path: Path) -> None:
    def x(batch: int) -> tuple[Tensor]:
        return (torch.randn(batch, 8),)

    check(tmp_path, Region(), x(3), [x(1), x(6)], dynamic={"x": {0: "batch"}}, precision=torch.bfloat16)


class Picture(nn.Module):
    """Normalizes bytes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))

    def forward(self, image: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        x = image.permute(0, 3, 1, 2).float() / 255 - self.mean
        shifted = (image << 1, image >> 1, image // 3, image - 200, image.sum((1, 2)))
        return self.conv(x).mean((2, 3)), *shifted, torch.minimum(gain, gain.flip(0)), gain.clamp(-5, 5).amax(-1)


def test_bytes_and_short_integers_wrap_as_in_pytorch(tmp_path: Path) -> None:
    def given(batch: int, side: int) -> tuple[Tensor, ...]:
        image = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8)
        return image, torch.randint(-300, 300, (batch, 4), dtype=torch.int16)

    axes = {"image": {0: "batch", 1: "side", 2: "side"}, "gain": {0: "batch"}}
    check(tmp_path, Picture(), given(2, 8), [given(1, 9), given(5, 6)], dynamic=axes)


# --- casts, node by node ----------------------------------------------------------------------------------------------


def _fitted(*nodes: onnx.NodeProto) -> ir.Model:
    """A chain from a bfloat16 input `x` to an output `y`."""
    shape = ["batch", 4]
    graph = onnx.helper.make_graph(
        list(nodes),
        "chain",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, shape)],
    )
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9))
    return OnnxRuntime().prepare(model).model


def test_rounding_between_operators_stays_and_needless_casts_go() -> None:
    node = onnx.helper.make_node
    rounded = _fitted(node("Exp", ["x"], ["a"]), node("Sigmoid", ["a"], ["y"]))
    assert [n.op_type for n in rounded.graph] == ["Cast", "Exp", "Cast", "Cast", "Sigmoid", "Cast"]
    selected = _fitted(node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Exp", ["b"], ["y"]))
    assert [n.op_type for n in selected.graph] == ["Cast", "Relu", "Neg", "Exp", "Cast"]


def test_steps_within_one_call_of_pytorch_are_not_rounded_between() -> None:
    """The parts of an attention are computed in float32, as PyTorch does: casts stand at its ends only."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    given = tuple(torch.randn(2, 2, 5, 8, dtype=torch.bfloat16) for _ in range(3))
    exported = tp.export(attention, given, route="export")
    kinds = [node.op_type for node in exported.model.graph]
    assert kinds.count("MatMul") == 2
    assert kinds.count("Cast") == 5  # q, k, v, k transposed, and the result


def test_what_has_kernels_is_left_alone() -> None:
    model = _fitted(onnx.helper.make_node("Transpose", ["x"], ["a"]), onnx.helper.make_node("Transpose", ["a"], ["y"]))
    assert [n.op_type for n in model.graph] == ["Transpose", "Transpose"]


def test_a_turned_and_cast_factor_does_not_crash_onnx_runtime(tmp_path: Path) -> None:
    """Transpose, Cast, MatMul: a segmentation fault in ONNX Runtime 1.31.1 if it is left as it is."""

    def model(x: Tensor, w: Tensor) -> Tensor:
        return x.transpose(0, 1).float() @ w

    def given(batch: int, steps: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, steps, 4).half(), torch.randn(4, 6)

    axes = {"x": {0: "batch", 1: "steps"}}
    _, ops = check(tmp_path, model, given(2, 5), [given(3, 4)], dynamic=axes, precision=torch.float16)
    assert ops["MatMul"] == 1


class Scaled(nn.Module):
    """Numbers before and after products, one of which is given itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, weights = self.mix(x, x, x)
        z = x @ x.transpose(1, 2)
        return y, weights, z, z * 0.1, (x / 0.7) @ y.transpose(1, 2)


def test_numbers_beside_products_are_exact_in_float64(tmp_path: Path) -> None:
    def given(batch: int, length: int) -> tuple[torch.Tensor]:
        return (torch.randn(batch, length, 8, dtype=torch.float64),)

    axes = {"x": {0: "batch", 1: "length"}}
    check(tmp_path, Scaled().double().eval(), given(2, 5), [given(1, 3), given(3, 1)], dynamic=axes)


def test_the_error_function_is_exact_to_the_last_digits_of_float64(tmp_path: Path) -> None:
    numbers = torch.cat([torch.linspace(-7, 7, 2001), torch.tensor([0.0, 1e-300, 100.0, -1e300])]).double()
    exported, _ = check(tmp_path, lambda x: torch.erf(x), (numbers,), [(numbers * 0.9,)])
    given = np.asarray(exported.proof.cases[0].max_abs)
    assert given < 1e-15


class PaddedPool(nn.Module):
    """Windows of negative numbers beside zeros: ONNX Runtime makes the two one, and forgets the zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(nn.functional.pad(x, (1, 1, 1, 1)), 3, 2)


def test_zeros_before_a_pool_are_kept(tmp_path: Path) -> None:
    images = [(-torch.rand(n, 2, 8, 8) - 1,) for n in (1, 2, 5)]
    for opset in (11, 18, 22):
        check(tmp_path, PaddedPool(), images[1], images, dynamic={"x": {0: "n"}}, opset=opset)


def _picture(*shape: int) -> tuple[Tensor]:
    return (torch.randn(shape, dtype=torch.float64),)


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose1d(4, 6, 2, padding=1, bias=False),
        nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(2, 0), dilation=(2, 1), groups=2),
    ],
)
def test_a_transposed_convolution_in_float64_is_exact(tmp_path: Path, layer: nn.Module) -> None:
    """ONNX Runtime has no kernel; computed in float32 it would be off by a millionth."""
    sides = [(5,), (8,)] if isinstance(layer, nn.ConvTranspose1d) else [(5, 4), (3, 7)]
    example, other = (_picture(n, 4, *side) for n, side in zip((2, 3), sides, strict=True))
    axes = {"input": {0: "batch", **{2 + a: f"side{a}" for a in range(len(sides[0]))}}}
    exported, _ = check(tmp_path, layer.double().eval(), example, [other], dynamic=axes)
    assert not any("less precise" in str(f) for f in exported.findings)


class Resized(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(x, **self.options)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2, "mode": "nearest"},
        {"size": (7, 10), "mode": "nearest"},
        {"size": (7, 10), "mode": "bilinear"},
        {"scale_factor": (2.5, 0.5), "mode": "bilinear"},
        {"size": (9, 1), "mode": "bilinear", "align_corners": True},
        {"size": (7, 10), "mode": "bicubic"},
        {"scale_factor": 2, "mode": "bicubic", "align_corners": True},
    ],
    ids=str,
)
def test_a_resized_picture_in_float64_is_exact(tmp_path: Path, options: dict[str, Any]) -> None:
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    others = [_picture(1, 3, 4, 8), _picture(3, 3, 6, 3)]
    exported, _ = check(tmp_path, Resized(**options), _picture(2, 3, 5, 6), others, dynamic=axes)
    assert not any("less precise" in str(f) for f in exported.findings)
