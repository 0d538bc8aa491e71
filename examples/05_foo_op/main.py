"""A node of one's own: exported, run by its kernel, and taken out of the graph again."""

import pathlib

import torch
from foo_op import FooModel, example_inputs

import torchport as tp
from torchport.engines.onnxruntime import kernel_libraries

torch.manual_seed(0)
torch.set_grad_enabled(False)
model, x = FooModel().eval(), torch.rand(4, 3, 128, 128)
library = kernel_libraries.build([pathlib.Path(__file__).parent / "foo_op.cc"])  # or: torchport ops build foo_op.cc

# Without a kernel PyTorch runs the node for the proof, and the result says so.
exported = tp.export(model, example_inputs(), dynamic={"input": {0: "N"}}, opset=13, output="model_foo.onnx")
print(*exported.findings)

# Whoever opens the file without the library is told what is missing.
try:
    tp.session("model_foo.onnx")
except tp.TorchportError as error:
    print(error)

# With the library it runs.
session = tp.session("model_foo.onnx", libraries=[library])
print("by the kernel, off by", float((session(x) - model(x)).abs().max()))

# And without the node nothing is needed.
graph = tp.graph.load("model_foo.onnx")
tp.graph.bypass(graph, "devtech::FooOp")
tp.graph.save(graph, "removed.onnx")
print("removed, off by", float((tp.session("removed.onnx")(x) - model(x)).abs().max()))
