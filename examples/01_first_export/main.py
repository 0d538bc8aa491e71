"""Export a model with a dynamic batch, look at the proof, run it in ONNX Runtime."""

import torch
from model import Net, example_inputs

import torchport as tp

torch.manual_seed(0)
model = Net()

exported = tp.export(model, example_inputs(), output="model.onnx", dynamic={"image": {0: "batch"}})
print(exported)

session = tp.session("model.onnx")
images = torch.randn(5, 3, 64, 64)  # a batch the export never saw
logits, embedding = session(images)
print("logits", tuple(logits.shape), "embedding", tuple(embedding.shape))
