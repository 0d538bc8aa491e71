"""Map `asinh` to ONNX by a symbolic function, at opset 9 and later. (The notes did this when torch had no mapping.)"""

import torch

import torchport as tp


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.asinh(x)


@tp.symbolic("aten::asinh", since=9)
def asinh(g, x):
    return g.op("Asinh", x)


x = torch.rand(1, 3, 10, 10)
for opset in (9, 13, 20):
    exported = tp.export(Net(), (x,), opset=opset, dynamic={"x": {0: "batch"}}, output=f"asinh{opset}.onnx")
    print(f"opset {opset}: {[n.op_type for n in exported.model.graph]}, {exported.proof.verdict_line()}")

# The missing links, and what is said of each.
try:
    tp.export(Net(), (x,), opset=8)  # ONNX has Asinh from opset 9 on
except tp.OpsetError as error:
    print("ONNX has no such operator:", error.what)


@tp.symbolic("aten::asinh", since=9)
def wrong(g, x):
    return g.op("Atan", x)


try:
    tp.export(Net(), (x,))
except tp.ProofError as error:
    print("the mapping is wrong:", error.what)
