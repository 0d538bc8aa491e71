"""A small network that many tests export."""

from __future__ import annotations

import torch
from torch import nn


class SmallNet(nn.Module):
    """A convolution, a norm and a linear layer, with a default argument and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        pooled = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return {"logits": self.fc(pooled) * scale, "pooled": pooled}
