"""torchport inspect and torchport lint, as they are typed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from torchport.cli.main import cli


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu", bad=1)]
    nodes += [helper.make_node("Exp", ["x"], [f"dead{n}"], name=f"exp{n}") for n in range(8)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    path = tmp_path / "faulty.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_inspect_shows_the_model_at_given_sizes(onnx_file: Path) -> None:
    done = run("inspect", onnx_file, "--at", "batch=2,height=16", "--at", "width=16")
    assert done.exit_code == 0, done.output
    assert "in   x       float32[batch,3,height,width]" in done.stdout
    assert "at batch=2, height=16, width=16" in done.stdout
    assert "(110,672)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_inspect_in_json(onnx_file: Path) -> None:
    done = run("inspect", onnx_file, "--at", "batch=2,height=16,width=16", "--json")
    plain = json.loads(done.stdout)
    assert plain["cost_at"]["multiply_adds"] == 2 * (16 * 16 * 216 + 40)
    assert plain["operators"]["Conv"] == 1


def test_inspect_shows_one_tensor(onnx_file: Path) -> None:
    done = run("inspect", onnx_file, "--tensor", "fc.weight")
    assert done.exit_code == 0, done.output
    assert "weight 'fc.weight': float32[5,8], 160 B" in done.stdout
    assert "std " in done.stdout
    assert json.loads(run("inspect", onnx_file, "--tensor", "fc.weight", "--json").stdout)["statistics"]["nan"] == 0


def test_inspect_shows_one_module(onnx_file: Path) -> None:
    done = run("inspect", onnx_file, "--module", "fc")
    assert "module 'fc': 1 nodes" in done.stdout
    assert "fc.bias" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tensor", "fc.wieght"], "close to it: fc.weight"),
        (["--module", "fcc"], "close to it: fc"),
        (["--node", "fc.weight"], "there is no node 'fc.weight'"),
        (["--node", "a", "--tensor", "b"], "give one of"),
        (["--at", "bach=2"], "did you mean 'batch'?"),
        (["--at", "batch"], "'batch' gives no size"),
        (["--at", "batch=two"], "'batch=two' gives no size"),
    ],
)
def test_a_mistake_in_the_call_is_told_and_exits_2(onnx_file: Path, arguments: list[str], said: str) -> None:
    done = run("inspect", onnx_file, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("verb", ["inspect", "lint"])
def test_a_file_that_is_no_model_exits_2(verb: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"PK\x03\x04")
    for name in ("m.onnx", "missing.onnx"):
        done = run(verb, tmp_path / name)
        assert done.exit_code == 2
        assert "next:" in done.stderr


def test_lint_of_a_good_model_exits_0(onnx_file: Path) -> None:
    done = run("lint", onnx_file, "--engine", "onnxruntime")
    assert (done.exit_code, done.stdout) == (0, "no faults\n")


def test_lint_lists_faults_and_exits_1_for_errors(faulty: Path) -> None:
    done = run("lint", faulty)
    assert done.exit_code == 1
    assert "error: node 'relu' (Relu): Unrecognized attribute: bad" in done.stdout
    assert "and 3 more like it" in done.stdout
    assert done.stdout.endswith("1 error, 8 warnings\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "more like it" not in run("lint", faulty, "--all").stdout


def test_warnings_alone_exit_0(faulty: Path) -> None:
    proto = onnx.load(faulty)
    del proto.graph.node[0].attribute[:]
    onnx.save(proto, faulty)
    assert run("lint", faulty).exit_code == 0


def test_lint_in_json(faulty: Path) -> None:
    plain = json.loads(run("lint", faulty, "--json").stdout)
    assert plain["counts"] == {"error": 1, "warning": 8, "note": 0}
    assert plain["faults"][0]["node"] == "relu"


def test_an_engine_that_is_not_here_exits_2(onnx_file: Path) -> None:
    assert run("lint", onnx_file, "--engine", "abacus").exit_code == 2


def test_both_verbs_run_from_the_shell(
    torchport: Callable[..., subprocess.CompletedProcess[str]], onnx_file: Path
) -> None:
    assert "size and cost" in torchport("inspect", onnx_file).stdout
    assert torchport("lint", onnx_file).stdout == "no faults\n"
