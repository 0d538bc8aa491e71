"""Take the picture of the README: `python docs/draw_report.py` writes docs/report.png. It needs Chromium.

A small transformer in which one weight of the ONNX file was changed, compared with PyTorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

import torchport as tp

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "src" / "torchport" / "reports" / "viewer" / "tests" / "picture.mjs"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.blocks = nn.Sequential(*(Block(32) for _ in range(3)))
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)).mean(1))


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("there is no Chromium: `make browser` installs it, as root")
    torch.manual_seed(0)
    model, tokens = Encoder().eval(), torch.randn(2, 12, 16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "encoder.onnx")
        exported = tp.export(model, (tokens,), output=path, dynamic={0: {0: "batch"}})
        weight = exported.model.graph.initializers["blocks.1.mlp.0.bias"]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() + 0.05, name=weight.name)
        tp.graph.save(exported.model, path)
        tp.report(path, Path(folder, "page.html"), against=model, inputs=(tokens,))
        command = ["node", str(SCRIPT), chromium, str(Path(folder, "page.html")), str(HERE / "report.png"), "Error"]
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
