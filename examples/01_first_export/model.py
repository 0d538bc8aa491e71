"""A small image classifier: the model of the first example."""

import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions and a linear layer; takes pictures of any size, as many as you like."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.classify = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = self.features(image).mean((2, 3))
        return {"logits": self.classify(pooled), "embedding": pooled}


def example_inputs() -> tuple[torch.Tensor]:
    """torchport takes these when no --input is given."""
    return (torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)),)
