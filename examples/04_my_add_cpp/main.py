"""An operator written in C++ for PyTorch: through autograd.Function with a symbolic, and defined once with a kernel."""

import pathlib

import torch
from torch.utils import cpp_extension

import torchport as tp

here = pathlib.Path(__file__).parent
my_lib = cpp_extension.load("my_lib", [str(here / "my_add.cpp")])  # compiled once, then kept

a, b = torch.rand(1, 4), torch.rand(1, 4)
dynamic = {"a": {0: "batch"}, "b": {0: "batch"}}


# As the notes have it: a function whose symbolic says what it is in ONNX.
class MyAddFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return my_lib.my_add(a, b)

    @staticmethod
    def symbolic(g, a, b):
        three = g.op("Constant", value_t=torch.tensor([3]))
        two = g.op("Constant", value_t=torch.tensor([2]))
        return g.op("Add", g.op("Mul", a, three), g.op("Mul", b, two))


class MyAdd(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = MyAddFunction.apply(a, b)
        return result


exported = tp.export(MyAdd(), (a, b), dynamic=dynamic, output="by_symbolic.onnx")
print(f"by symbolic: {[n.op_type for n in exported.model.graph if n.op_type != 'Constant']}")
print(exported.proof.verdict_line())


# Without a link: torch knows the operator, ONNX does not.
class Plain(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.my_lib.my_add(a, b)
        return result


try:
    tp.export(Plain(), (a, b), dynamic=dynamic)
except tp.TorchportError as error:
    print("no mapping:", error)

# Defined once: the C++ implementation is taken over, and gets a node and a kernel.
my_add = tp.operator("my_lib::my_add")
my_add.onnx("my_lib::MyAdd")
my_add.kernel("my_add_kernel.cc")
exported = tp.export(Plain(), (a, b), dynamic=dynamic, output="my_add.onnx")
print(f"by kernel: {[f'{n.domain}::{n.op_type}' for n in exported.model.graph]}")
print(exported.proof.verdict_line())
