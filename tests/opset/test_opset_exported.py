"""Models exported by PyTorch keep their numbers at every opset."""

from __future__ import annotations

import io
import warnings
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from conversions import check_conversion

from torchport.opset import convert


@pytest.fixture(scope="module")
def exported() -> dict[str, tuple[ir.Model, dict[str, Any]]]:
    """Small models that between them hold what PyTorch models are made of."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Convolutional(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.group = nn.GroupNorm(2, 8)
            self.last = nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            x = functional.max_pool2d(functional.silu(self.norm(self.first(x))), 3, 2, ceil_mode=True)
            x = functional.interpolate(functional.hardswish(self.group(x)), scale_factor=2.0)
            a, b = functional.pad(x, (1, 0, 0, 1)).chunk(2, dim=1)
            x = functional.adaptive_avg_pool2d(torch.cat([a * 2, b.relu()], 1), 1)
            return self.last(x.squeeze(-1).squeeze(-1)).softmax(-1)

    class Encoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 16)
            self.norm = nn.LayerNorm(16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.block = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            y, _ = self.attention(x, x, x, need_weights=False)
            x = self.block(self.norm(x + y))
            q = x.unsqueeze(1)
            q = functional.scaled_dot_product_attention(q, q, q, is_causal=True).squeeze(1)
            mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 0
            scores = (x @ q.transpose(1, 2)).masked_fill(mask, -1e4).softmax(-1)
            return torch.split(scores @ x, [6, 10], dim=-1)[1].cumsum(1)

    cases = {
        "convolutional": (Convolutional(), torch.randn(2, 3, 15, 15), {0: "batch"}),
        "encoder": (Encoder(), torch.randint(0, 20, (2, 7)), {0: "batch", 1: "length"}),
    }
    found = {}
    for name, (module, example, dynamic) in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = ({i: torch.export.Dim(n) for i, n in dynamic.items()},)
            program = torch.onnx.export(
                module.eval(), (example,), dynamo=True, opset_version=18, dynamic_shapes=shapes, verbose=False
            )
        feeds = {program.model.graph.inputs[0].name: example.numpy()}
        found[name] = (program.model, feeds)
    return found


@pytest.mark.parametrize("target", [17, 16, 15, 14, 13, 12, 11, 10, 9, 20, 23])
@pytest.mark.parametrize("name", ["convolutional", "encoder"])
def test_exported_models_keep_their_numbers(exported: Any, name: str, target: int) -> None:
    model, feeds = exported[name]
    check_conversion(model, feeds, (target,), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", [9, 11, 13, 17])
def test_models_of_the_torchscript_exporter_are_raised(source: int) -> None:
    import torch
    from torch import nn

    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.Upsample(scale_factor=2), nn.ZeroPad2d(1)]
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Dropout(), nn.Softmax(dim=1)).eval()
    example, file = torch.randn(1, 3, 8, 8), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (example,),
            file,
            opset_version=source,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": [0]},
        )
    old = ir.from_proto(onnx.load_from_string(file.getvalue()))
    check_conversion(old, {"x": example.numpy()}, (18, 21, 24, 10))
    newest = ir.to_proto(convert.convert(old, convert.SUPPORTED[-1]))
    onnx.checker.check_model(newest, full_check=True)
