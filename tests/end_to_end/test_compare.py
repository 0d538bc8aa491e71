"""torchport compare, as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result

from torchport.cli.compare import command
from torchport.files import onnx_files

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 6)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

def example_inputs():
    return (torch.linspace(-1, 1, 16).reshape(2, 8),)
"""
PROGRAM = """
import torch
from model import Net

torch.manual_seed(0)
net = Net().eval()
for scale in (1.0, 2.0):
    net(torch.linspace(-scale, scale, 16).reshape(2, 8))
"""

Torchport = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, torchport: Torchport) -> Path:
    """A model, its export, one with a wrong weight, and two recorded calls."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "model.py").write_text(MODEL)
    (folder / "program.py").write_text(PROGRAM)
    assert torchport("export", "model.py:Net", "-o", "right.onnx", cwd=folder).returncode == 0
    model = onnx_files.load(folder / "right.onnx")
    weight = model.graph.initializers["last.weight"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * 1.5, name="last.weight")
    onnx_files.save(model, folder / "wrong.onnx")
    assert torchport("record", "-o", "calls", "program.py", cwd=folder).returncode == 0
    return folder


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(folder)
    return lambda *words: CliRunner().invoke(command, [str(w) for w in words])


Call = Callable[..., Result]


def test_a_pytorch_model_agrees_with_its_export(call: Call) -> None:
    done = call("model.py:Net", "right.onnx", "--layers")
    assert done.exit_code == 0, done.output
    assert "layers: 3 agrees" in done.stdout
    assert "the same: the output is within tolerance" in done.stdout
    assert "comparing 3 layers, slice 1 of 1" in done.stderr


def test_the_first_divergence_is_named_down_to_the_python_line_and_can_be_rerun(call: Call, folder: Path) -> None:
    done = call("model.py:Net", "wrong.onnx", "--layers", "--isolate", "--save", "found", "-q")
    assert done.exit_code == 1
    assert "module  last" in done.stdout
    assert "model.py:12" in done.stdout
    assert "DIFFERENT: 1 of 1 outputs differ" in done.stdout
    assert not done.stderr
    saved = {p.name for p in (folder / "found").iterdir()}
    assert "worst.npz" in saved
    assert len([n for n in saved if n.endswith(".onnx")]) == 1
    again = call("model.py:Net", "wrong.onnx", "--data", "found/worst.npz", "-q")
    assert again.exit_code == 1


def test_the_result_for_machines_has_every_figure(call: Call) -> None:
    done = call("right.onnx", "wrong.onnx", "--data", "calls", "--layers", "--json")
    found = json.loads(done.stdout)
    (output,) = found["outputs"]
    assert done.exit_code == 1
    assert found["agrees"] is False
    assert found["samples"] == 2
    assert found["first_divergence"]["origin"]["module"] == "last"
    assert output["max_abs"] > 0.1
    assert sum(output["histogram"]["counts"]) + output["histogram"]["exact"] == 24
    assert 0 <= output["top1"] <= 1
    assert list(found["modules"]) == ["first", "last"]
    assert found["modules"]["first"] < 1e-6 < found["modules"]["last"]


def test_an_engine_that_is_not_there_is_told_and_the_others_are_compared(call: Call) -> None:
    done = call("right.onnx", "--engines", "onnxruntime,tvm,reference", "--layers", "-q")
    assert done.exit_code == 1
    told = "NOT compared: there is no engine 'tvm' here; use one of: onnxruntime, openvino, reference"
    assert told in " ".join(done.stdout.split())
    assert "reference against onnxruntime" in done.stdout
    assert "the same" in done.stdout
    found = json.loads(call("right.onnx", "--engines", "onnxruntime,reference", "--json").stdout)
    assert list(found["comparisons"]) == ["reference"]


def test_recordings_of_both_sides_tell_that_the_inputs_differ(call: Call, folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    for path in (folder / "calls").glob("*.npz"):
        np.savez(other / path.name, x=np.load(path)["x"] / 255)
    done = call("model.py:Net", "right.onnx", "--data", "calls", "--data-b", "other", "-q")
    assert done.exit_code == 1
    assert "input 'x' differs by a factor of 255" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-2:] == [
        "OTHER INPUTS: the models agree (the output is within tolerance), but each side",
        "  was fed its own 'x'",
    ]
    assert call("model.py:Net", "right.onnx", "--data", "calls", "--data-b", "calls", "-q").exit_code == 0


def test_the_worst_sample_is_an_input_for_other_commands(call: Call, folder: Path) -> None:
    assert call("model.py:Net", "wrong.onnx", "--data", "calls", "--save", "kept", "-q").exit_code == 1
    again = call("model.py:Net", "wrong.onnx", "-i", "kept/worst.npz", "-q")
    assert (again.exit_code, again.stdout.splitlines()[-1]) == (1, "DIFFERENT: 1 of 1 outputs differ")


def test_the_layers_that_need_precision_are_listed(call: Call) -> None:
    assert "precision: no layer needs more" in call("right.onnx", "right.onnx", "--precision", "-q").stdout


def test_a_small_memory_finds_the_same(call: Call) -> None:
    words = ("model.py:Net", "wrong.onnx", "--layers", "--isolate", "--all", "-q")
    assert call(*words, "--memory", "64").stdout == call(*words, "--memory", "1GiB").stdout


def test_made_up_inputs_are_said_to_be(call: Call) -> None:
    assert "the inputs were made up" in call("right.onnx", "right.onnx", "-q").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("right.onnx",), "nothing to compare with"),
        (("right.onnx", "none.onnx"), "none.onnx"),
        (("model.py:Nope", "right.onnx"), "there is no 'Nope'"),
        (("right.onnx", "right.onnx", "--input", "x=float32[3,8]"), "has size 3 at axis 0"),
        (("right.onnx", "right.onnx", "--data", "nowhere"), "no file or folder 'nowhere'"),
        (("right.onnx", "right.onnx", "--memory", "lots"), "is no size"),
        (("right.onnx", "right.onnx", "--memory", "0"), "no tensor fits into 0 bytes"),
        (("right.onnx", "right.onnx", "--data", "calls", "-i", "x=float32[2,8]"), "--input or --data, not both"),
        (("right.onnx", "--engines", "onnxruntime,nosuch"), "there is no engine 'nosuch'"),
        (("right.onnx", "right.onnx", "--engines", "onnxruntime,reference"), "two models and 2 engines"),
        (("right.onnx", "right.onnx", "--map", "y"), "is not A=B"),
        (("right.onnx", "right.onnx", "--map", "output=a", "--map", "output=b"), "output 'output' is given twice"),
        (("right.onnx", "right.onnx", "--map", "a=output", "--map", "b=output"), "output 'output' is given twice"),
        (("right.onnx", "right.onnx", "--rtol", "1"), "belong together"),
        (("right.onnx", "model.py:Net", "--layers"), "put the ONNX model second"),
    ],
)
def test_what_cannot_be_meant_exits_2_without_a_traceback(call: Call, words: tuple[str, ...], told: str) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert told in done.output
    assert "Traceback" not in done.output


OPERATORS = """
import torch
from torch import Tensor, nn
import torchport as tp

@tp.operator("comparetest::twice_and")
def twice_and(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 + b

twice_and.onnx("comparetest::TwiceAnd")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(twice_and(self.fc(x), x))

def example_inputs():
    return (torch.linspace(-1, 1, 8).reshape(2, 4),)
"""


def test_a_custom_operator_is_a_layer_like_any_other(tmp_path: Path, torchport: Torchport) -> None:
    (tmp_path / "own.py").write_text(OPERATORS)
    assert torchport("export", "own.py:Net", "-o", "own.onnx", cwd=tmp_path).returncode == 0
    words = ("compare", "own.py:Net", "own.onnx", "--library", "own.py", "--isolate", "--json")
    untouched = torchport(*words, cwd=tmp_path)
    assert untouched.returncode == 0, untouched.stderr
    assert [x["state"] for x in json.loads(untouched.stdout)["layers"]] == ["agrees"] * 3
    model = onnx_files.load(tmp_path / "own.onnx")
    (node,) = (n for n in model.graph if n.domain == "comparetest")
    node.replace_input_with(1, node.inputs[0])
    onnx_files.save(model, tmp_path / "own.onnx", check=False)
    wrong = torchport(*words, cwd=tmp_path)
    first = json.loads(wrong.stdout)["first_divergence"]
    assert wrong.returncode == 1
    assert first["operator"] == "comparetest::TwiceAnd"
    assert first["suspects"] == [node.name]
