"""tp.optimize and `torchport optimize`: passes that fail are named and rolled back, and the answers stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchport as tp
from torchport.cli.main import cli
from torchport.errors import FileError, InputError, OptionError, RandomModelError, SaveError
from torchport.optimization import optimizing, pass_runs
from torchport.optimization.result import Optimized, PassRun

BROKEN = """
import os, time
import numpy as np
import onnx_ir as ir
from torchport.optimization.passes.graph_pass import GraphPass

def apply(model, work):
    for node in list(model.graph):
        work.looks_at(node)
        {body}

PASS = GraphPass("{name}", "anything", "nothing", apply)
"""
WRONG = """
        if node.op_type == "Relu" and work.permits(node) and node.name.endswith("2"):
            node.op_type = "Neg"
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return torch.relu(self.head(torch.relu(y) * 2))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    tp.export(Net().eval(), (torch.randn(2, 3, 12, 12),), output=path, dynamic={"x": {0: "batch"}})
    return path


def outputs(path: str | Path, **feeds: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def by_name(done: Optimized) -> dict[str, PassRun]:
    return {run.name: run for run in done.passes}


def line_of_relus(path: Path) -> Path:
    """Five Relus in a row, with an Add between, that no pass takes out."""
    text = " ".join(f"a{n} = Relu({'x' if n == 0 else f'b{n - 1}'}) b{n} = Sub(a{n}, c)" for n in range(5))
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float[n,4] b4) {{ {text} }}'
    )
    for node in proto.graph.node:
        node.name = node.output[0].replace("a", "relu").replace("b", "sub")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([0.1]), "c"))
    onnx.save(proto, path)
    return path


def broken_pass(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    (folder / f"{name}.py").write_text(BROKEN.format(body=body, name=name))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(tp.__file__).parent.parent}")
    monkeypatch.setattr(pass_runs, "CLEANUP", (*pass_runs.CLEANUP[:2], name, *pass_runs.CLEANUP[2:]))


def test_a_model_is_optimized_saved_and_gives_the_same_answers(exported: Path, tmp_path: Path) -> None:
    done = tp.optimize(exported, output=tmp_path / "fast.onnx")
    x = np.random.default_rng(0).standard_normal((7, 3, 12, 12)).astype(np.float32)
    np.testing.assert_allclose(outputs(tmp_path / "fast.onnx", x=x)[0], outputs(exported, x=x)[0], rtol=1e-4, atol=1e-5)
    assert done.proof.passed
    assert json.loads(done.model.metadata_props["torchport.optimized"])["for"] == "onnxruntime"
    assert done.nodes_after <= done.nodes_before
    assert done.path == str(tmp_path / "fast.onnx")
    assert json.loads(json.dumps(done.to_json()))["passes"][0]["name"] == "constant folding"
    assert max(map(len, str(done).splitlines()[1:])) <= 80


def test_what_does_nothing_says_why(exported: Path) -> None:
    run = by_name(tp.optimize(exported))["transposes"]
    assert run.verdict == "nothing to do"
    assert "two transposes" in run.reason


def test_every_form_of_a_model_is_taken(exported: Path) -> None:
    counts = {tp.optimize(form).nodes_after for form in (str(exported), onnx.load(exported), tp.graph.load(exported))}
    assert len(counts) == 1


def test_the_model_in_memory_is_not_changed(exported: Path) -> None:
    model = tp.graph.load(exported)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    tp.optimize(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_origins_survive(exported: Path, tmp_path: Path) -> None:
    done = tp.optimize(exported, output=tmp_path / "fast.onnx")
    sources = [node.metadata_props.get("torchport.source", "") for node in done.model.graph]
    assert all("test_optimize.py" in source for source in sources if source)
    assert sum(bool(source) for source in sources) >= len(sources) - 1


def test_a_pass_that_changes_an_answer_is_named_with_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_pass(tmp_path, monkeypatch, "wrong_pass", WRONG.strip())
    done = tp.optimize(line_of_relus(tmp_path / "m.onnx"), output=tmp_path / "fast.onnx")
    run = by_name(done)["wrong_pass"]
    assert (run.verdict, run.node) == ("rolled back", "relu2")
    assert "it changes the outputs" in run.reason
    x = np.float32([[1, -2, 3, -4]])
    assert np.array_equal(outputs(tmp_path / "fast.onnx", x=x)[0], outputs(tmp_path / "m.onnx", x=x)[0])


def test_a_pass_that_raises_is_named_with_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'if node.name == "relu3": raise ValueError("no such thing")'
    broken_pass(tmp_path, monkeypatch, "raising_pass", body)
    run = by_name(tp.optimize(line_of_relus(tmp_path / "m.onnx")))["raising pass"]
    assert (run.verdict, run.node) == ("rolled back", "relu3")
    assert "no such thing" in run.reason


def test_a_pass_that_ends_its_process_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_pass(tmp_path, monkeypatch, "ending_pass", 'if node.name == "sub1": os.kill(os.getpid(), 11)')
    done = tp.optimize(line_of_relus(tmp_path / "m.onnx"))
    run = by_name(done)["ending pass"]
    assert (run.verdict, run.node) == ("rolled back", "sub1")
    assert "SIGSEGV" in run.reason
    assert "dead code" in by_name(done)


def test_a_pass_that_hangs_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_pass(tmp_path, monkeypatch, "hanging_pass", 'while node.name == "sub2": time.sleep(0.01)')
    monkeypatch.setattr(optimizing, "_SECONDS", 15.0)
    done = tp.optimize(line_of_relus(tmp_path / "m.onnx"))
    run = by_name(done)["hanging pass"]
    assert (run.verdict, run.node) == ("rolled back", "sub2")
    assert "longer than" in run.reason
    assert "dead code" in by_name(done)


def test_dimensions_are_fixed(exported: Path, tmp_path: Path) -> None:
    done = tp.optimize(exported, output=tmp_path / "one.onnx", fix={"batch": 1})
    assert [list(v.shape or ()) for v in done.model.graph.inputs] == [[1, 3, 12, 12]]
    x = np.ones((1, 3, 12, 12), np.float32)
    np.testing.assert_allclose(outputs(tmp_path / "one.onnx", x=x)[0], outputs(exported, x=x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("fix", "words"), [({"bach": 1}, "no dimension 'bach'"), ({"x:1": 5}, "x:1|3|Conv")])
def test_a_dimension_that_is_not_there_or_contradicts_is_refused(
    exported: Path, tmp_path: Path, fix: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        tp.optimize(exported, output=tmp_path / "fast.onnx", fix=fix)
    assert not (tmp_path / "fast.onnx").exists()


def test_a_random_model_is_refused(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { r = RandomNormal<shape=[2,3]>()  y = Add(x, r) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}'), tmp_path / "m.onnx")
    with pytest.raises(RandomModelError):
        tp.optimize(tmp_path / "m.onnx", output=tmp_path / "fast.onnx")
    assert not (tmp_path / "fast.onnx").exists()


def test_what_is_no_model_and_what_cannot_be_written_is_refused(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(FileError):
        tp.optimize(tmp_path / "no.onnx")
    with pytest.raises(SaveError):
        tp.optimize(exported, output=tmp_path / "no" / "such" / "folder.onnx")
    with pytest.raises(OptionError, match="no target"):
        tp.optimize(exported, target="onxruntime")


def test_the_command_line_saves_and_says_what_it_did(exported: Path, tmp_path: Path) -> None:
    fast = tmp_path / "fast.onnx"
    done = CliRunner().invoke(
        cli, ["optimize", str(exported), "-o", str(fast), "--for", "portable", "--fix", "batch=2"]
    )
    assert done.exit_code == 0, done.output
    assert fast.exists()
    assert "proven" in done.output


@pytest.mark.parametrize("fix", ["batch", "batch=0", "batch=x", "batch=1,batch=2"])
def test_a_fix_that_cannot_be_meant_is_a_mistake_in_the_call(exported: Path, tmp_path: Path, fix: str) -> None:
    done = CliRunner().invoke(cli, ["optimize", str(exported), "-o", str(tmp_path / "f.onnx"), "--fix", fix])
    assert done.exit_code == 2


def test_an_interrupt_leaves_nothing_half_written(exported: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from torchport.optimization import optimizing\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
        "def say(text):\n"
        "    if text == 'verifying': os.kill(os.getpid(), signal.SIGINT)\n"
        "optimizing.optimize(sys.argv[1], output=sys.argv[2], progress=say)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(exported), str(tmp_path / "fast.onnx")], capture_output=True, text=True
    )
    assert "KeyboardInterrupt" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["onnxslim", "onnxsim"])
def test_another_simplifier_is_tried_under_the_same_rules(name: str, tmp_path: Path) -> None:
    path = line_of_relus(tmp_path / "m.onnx")
    run = by_name(tp.optimize(path, output=tmp_path / "fast.onnx", simplifiers=[name]))[name]
    assert run.verdict in ("kept", "nothing to do")
    x = np.float32([[1, -2, 3, -4]])
    assert np.array_equal(outputs(tmp_path / "fast.onnx", x=x)[0], outputs(path, x=x)[0])


def test_a_simplifier_takes_out_what_passes_leave_and_origins_stay(tmp_path: Path) -> None:
    from torchport.optimization.passes.graph_pass import Work
    from torchport.optimization.passes.onnxslim import PASS

    model = tp.graph.load(line_of_relus(tmp_path / "m.onnx"))
    for node in model.graph:
        node.metadata_props["torchport.source"] = f"net.py:{node.name}"
    first = model.graph[0].outputs[0]
    again = ir.Node("", "Identity", [first], name="again")
    model.graph.insert_after(model.graph[0], again)
    ir.convenience.replace_all_uses_with(first, again.outputs[0])
    again.replace_input_with(0, first)
    work = Work()
    PASS.apply(model, work)
    assert work.changes == 1
    assert [node.op_type for node in model.graph] == ["Relu", "Sub"] * 5
    assert model.graph[3].metadata_props["torchport.source"] == "net.py:sub1"


def test_an_unknown_simplifier_is_a_mistake_in_the_call(exported: Path) -> None:
    with pytest.raises(OptionError, match="no simplifier 'onnxslimm'"):
        tp.optimize(exported, simplifiers=["onnxslimm"])


CUSTOM = """
import torch
import torchport as tp

@tp.operator("mine::halve")
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2 + 1

halve.onnx("mine::Halve")

class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halve(torch.relu(torch.relu(x)))
"""


def test_a_model_with_an_operator_of_its_own_is_optimized_with_its_library(tmp_path: Path) -> None:
    (tmp_path / "halving.py").write_text(CUSTOM)
    script = (
        "import torch, torchport as tp, halving\n"
        "tp.export(halving.Net(), (torch.randn(2, 4),), output='m.onnx', dynamic={'x': {0: 'batch'}})\n"
        "m = tp.graph.load('m.onnx')\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env={**os.environ, **WHERE})
    start = [sys.executable, "-c", "from torchport.cli.main import main; main()", "optimize", "m.onnx", "-o", "f.onnx"]
    alone = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **WHERE})
    assert alone.returncode == 1
    assert "mine::Halve" in alone.stderr
    done = subprocess.run(
        [*start, "--library", "halving.py"], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **WHERE}
    )
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout


WHERE = {"PYTHONPATH": f".:{Path(tp.__file__).parent.parent}"}


def test_a_model_that_is_quantized_already_stays_right(tmp_path: Path) -> None:
    text = """g (float[n,4] x) => (float[n,3] y)
    { a = QuantizeLinear(x, s, z)  b = DequantizeLinear(a, s, z)  c = DequantizeLinear(w, s, k)  d = MatMul(b, c)
      y = Add(d, bias) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    numbers = {"s": np.float32(0.05), "z": np.uint8(128), "k": np.int8(0), "bias": np.float32([1, 2, 3])}
    numbers["w"] = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in numbers.items())
    onnx.save(proto, tmp_path / "m.onnx")
    done = tp.optimize(tmp_path / "m.onnx")
    assert [node.op_type for node in done.model.graph].count("DequantizeLinear") == 2
    assert "MatMul" in [node.op_type for node in done.model.graph]
