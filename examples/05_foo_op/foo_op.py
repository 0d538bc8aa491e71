"""The notes' stand-in for an operator ONNX does not have: it does nothing, but it is a node."""

import torch


class FooOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def symbolic(g, x):
        return g.op("devtech::FooOp", x)


class FooModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = FooOp.apply(self.model(input))
        return result


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.rand(1, 3, 128, 128),)
