"""The commands whose JSON and files `make golden` holds, and the files they start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import torch
from models import CASES

import torchport as tp

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x, offset: float = 0.5):
        pooled = torch.relu(self.norm(self.conv(x))).mean((2, 3)) + offset
        return self.head(pooled), pooled


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return -x


class Frozen(nn.Module):
    def forward(self, x):
        return x + torch.ones(len(x.tolist()), 1)


def example_inputs():
    return torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
"""

_PROGRAM = """
import torch
from net import Net, example_inputs

model = Net().eval()
for scale in (1.0, 2.0):
    model(example_inputs() * scale)
"""

_RECIPE = """
- rename: {x: image}
- set_opset: 18
- preprocess: "scale: 255"
"""


def prepare() -> None:
    """Write the files that the commands read."""
    Path("net.py").write_text(_MODEL)
    Path("program.py").write_text(_PROGRAM)
    Path("recipe.yaml").write_text(_RECIPE)
    for name in ("encoder", "recurrent", "branches", "float16"):
        torch.manual_seed(0)
        model, args, options = CASES[name]()
        tp.export(model, args, output=f"{name}.onnx", **options)
    torch.manual_seed(0)
    x = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)
    np.savez("x.npz", x=x)
    torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())), "script.pt")
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),)), "program.pt2")
    Path("broken.onnx").write_bytes(b"<!doctype html>")
    _with_faults(Path("faults.onnx"))


def _with_faults(path: Path) -> None:
    """A model that loads and has something for lint to say."""
    value = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["y"], name="relu"),
        onnx.helper.make_node("Foo", ["x"], ["z"], name="foo", domain="strange"),
        onnx.helper.make_node("Neg", ["x"], ["unused"], name="unused"),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", kind, ["n", 3])], [value("y", kind, ["n", 3]), value("z", kind, None)]
    )
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("strange", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


COMMANDS = [
    shlex.split(line)
    for line in """
export net.py:Net -d x:0=batch -o net.onnx -q --json
export net.py:Net -d x:0=batch,2=h,3=w --opset 13 --external-data -o external.onnx -q
export net.py:Branch -i x=float32[3,4] -o branch.onnx -q --json
export net.py:Frozen -i x=float32[3,4] -d x:0=batch -o frozen.onnx -q --json
export net.py:Frozen -i x=float32[3,4] -d x:0=batch -o frozen.onnx -q
export script.pt -i input=float32[3,4] -d input:0=batch -o script.onnx -q --json
export program.pt2 -o program.onnx -q --json
export net.py:Nett -o none.onnx -q
export net.py:Net -d y:0=batch -o none.onnx -q --json
verify net.onnx --against net.py:Net -q --json
verify net.onnx --against net.py:Branch -q
verify broken.onnx --against net.py:Net -q --json
compare net.py:Net net.onnx --layers --json -q
compare net.py:Net net.onnx --isolate -q --all
compare net.onnx --engines onnxruntime,reference --layers -i x.npz -q --json
compare net.onnx external.onnx -i x.npz --layers -q --json
compare net.onnx float16.onnx -i x.npz -q --json
rewrite net.py:Branch -q
rewrite net.py:Branch -i x=float32[3,4] --json -q
ops find asinh --json
ops show aten::roll --json
ops show Resize
ops list --missing --json
ops coverage net.py:Net --json -q
inspect net.onnx --json
inspect net.onnx --at batch=8
inspect net.onnx --module head --json
inspect encoder.onnx --all
inspect recurrent.onnx --tensor x --json
inspect branches.onnx --json
cut net.onnx --module head -o head.onnx --json
cut net.onnx --from getitem --to output_1 -o part.onnx -q
cut net.onnx --from nothing -o part.onnx --json
split encoder.onnx --parts 3 -o part.onnx --json
edit net.onnx --rename x=image --set-dim batch=4 -o fixed.onnx --json
edit fixed.onnx --set-dim image:0=batch --verify -o free.onnx -q --json
edit net.onnx --recipe recipe.yaml -o recipe.onnx --json
edit net.onnx --bypass Relu --fold --deduplicate --remove-unused --sort -o bypassed.onnx --json
edit net.onnx --replace "Relu by Abs" -o replaced.onnx --json
edit net.onnx --bypass Nothing -o none.onnx
edit encoder.onnx --set-opset 13 -o old.onnx -q --json
edit encoder.onnx --outline "module:layers.layers.* as my::Layer" -o outlined.onnx --json
diff net.onnx bypassed.onnx --json
diff encoder.onnx old.onnx
diff net.onnx net.onnx --json
lint faults.onnx --json
lint faults.onnx --engine onnxruntime
lint net.onnx --engine onnxruntime --json
lint broken.onnx --json
run net.onnx -i x.npz --json
run net.onnx -i x.npz --watch head* --engine reference
run net.onnx -i x=float32[2,3,8,8] --seed 1 -o out.npz --json
run net.onnx -i y=float32[2,3,8,8] --json
record -o samples/ program.py -q
compare net.py:Net net.onnx --data samples/ -q --json
reduce bypassed.onnx --against net.onnx -i x.npz -o small.onnx -q --json
edit net.onnx --set-attribute node_linear:alpha=1.5 -o attribute.onnx --json
edit net.onnx --insert "Identity after output_1" --set-dtype x=float16 -o inserted.onnx --json
edit net.onnx --to-input head.0.weight -o input.onnx --json
edit head.onnx --rename output_1=a --rename output_0=b -o tail.onnx --json
edit net.onnx --merge tail.onnx -o merged.onnx --json
edit outlined.onnx --inline my::Layer --strip-metadata all -o inlined.onnx --json
edit free.onnx --preprocess "scale: 255, normalize: imagenet" -o normalized.onnx --json
compare net.onnx bypassed.onnx -i x.npz --layers --isolate -q
reduce net.onnx --against reference -i x.npz -o small.onnx -q --json
""".splitlines()
    if line
]
