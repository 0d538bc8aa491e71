"""Deformable convolution, an operator of torchvision's: as ONNX's own DeformConv, and as a node of one's own."""

import torch
from deform_conv2d import Net, example_inputs

import torchport as tp

torch.manual_seed(0)
model, dynamic = Net().eval(), {"x": {0: "batch"}}

# ONNX has DeformConv from opset 19 on.
exported = tp.export(model, example_inputs(), dynamic=dynamic, opset=19, output="deform19.onnx")
print(f"opset 19: {[n.op_type for n in exported.model.graph]}, {exported.proof.verdict_line()}")

# Before that, a link is missing, and it is said which.
try:
    tp.export(model, example_inputs(), dynamic=dynamic, opset=13)
except tp.OpsetError as error:
    print("opset 13:", error.what, "|", error.next_step)


# A node of one's own, for an engine that has it.
@tp.symbolic("torchvision::deform_conv2d", since=9)
def deform_conv2d(g, input, weight, offset, mask, bias, *rest):
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups, _ = rest
    return g.op(
        "custom::deform_conv2d",
        input,
        weight,
        offset,
        mask,
        bias,
        strides_i=[stride_h, stride_w],
        pads_i=[pad_h, pad_w],
        dilations_i=[dilation_h, dilation_w],
        groups_i=groups,
        offset_groups_i=offset_groups,
    )


exported = tp.export(model, example_inputs(), dynamic=dynamic, opset=13, output="deform13.onnx")
print(f"opset 13: a node {[f'{n.domain}::{n.op_type}' for n in exported.model.graph if n.domain]}")
print(*exported.findings, sep="\n")

# Nobody but PyTorch has run that node. Whoever opens the file is told what is missing.
try:
    tp.session("deform13.onnx")
except tp.TorchportError as error:
    print(error.what)
