"""Bicubic interpolation: what `torch.nn.functional.interpolate` becomes, at which opset."""

import torch

import torchport as tp


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False)


x = torch.rand(1, 3, 32, 32)
dynamic = {"x": {0: "batch", 2: "height", 3: "width"}}

# torch calls it upsample_bicubic2d, and maps it to Resize; both sides can be looked up.
print(tp.operators.show("aten::upsample_bicubic2d").mappings[0])
print([version for version, _ in tp.operators.show("Resize").versions])

for opset in (11, 13, 18):
    exported = tp.export(Net(), (x,), dynamic=dynamic, opset=opset, output=f"bicubic{opset}.onnx")
    resize = next(n for n in exported.model.graph if n.op_type == "Resize")
    how = {name: resize.attributes[name].value for name in ("mode", "coordinate_transformation_mode", "cubic_coeff_a")}
    print(f"opset {opset}: Resize {how}, {exported.proof.verdict_line()}")

# Before opset 11 Resize knew no bicubic: refused, with what would do.
try:
    tp.export(Net(), (x,), dynamic=dynamic, opset=10)
except tp.OpsetError as error:
    print("opset 10:", error.what, "|", error.next_step)
