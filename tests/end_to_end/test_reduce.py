"""torchport reduce, as a user calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from torchport.cli.reduce import command
from torchport.engines.session import open_session
from torchport.files import onnx_files

SHAPE = [2, 3]


def saved(path: Path, ops: list[str]) -> Path:
    """A chain of one-input operators with skip connections, with modules and lines, as torchport writes them."""
    nodes, here = [], "x"
    for i, op in enumerate(ops):
        out = "y" if i == len(ops) - 1 else f"t{i}"
        nodes.append(helper.make_node(op, [here], [out], name=f"n{i}"))
        here = out
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    for i, node in enumerate(model.graph):
        node.metadata_props.update({"torchport.module": f"layers.{i}", "torchport.source": f"net.py:{i + 10}"})
    return onnx_files.save(model, path, check=False)


def call(*words: object) -> Result:
    return CliRunner().invoke(command, [str(w) for w in words])


def chain(folder: Path, faulty: int | None = None, op: str = "Exp") -> Path:
    ops = ["Neg"] * 40
    if faulty is not None:
        ops[faulty] = op
    return saved(folder / f"m{faulty}.onnx", ops)


def test_a_model_is_reduced_against_the_good_one_and_anyone_can_rerun_what_is_left(tmp_path: Path) -> None:
    good, bad, small = chain(tmp_path), chain(tmp_path, 23), tmp_path / "small.onnx"
    result = call(bad, "--against", good, "-o", small, "--quiet")
    assert result.exit_code == 0, result.output
    assert "1 of 40 nodes left" in result.output
    assert "n23: net.py:33, module 'layers.23'" in result.output
    assert "7 checks" in result.output or "8 checks" in result.output
    inputs, right = (dict(np.load(small.with_suffix(s))) for s in (".npz", ".expected.npz"))
    assert [n.op_type for n in onnx.load(small).graph.node] == ["Exp"]
    answers = open_session(small).run(inputs)
    np.testing.assert_allclose(answers["t23"], np.exp(inputs["t22"]), rtol=1e-6)
    np.testing.assert_allclose(right["t23"], -inputs["t22"])


def test_a_command_of_the_users_reduces_and_json_has_it_all(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("import sys; sys.exit(b'Exp' in open(sys.argv[1], 'rb').read())")
    bad, small = chain(tmp_path, 9), tmp_path / "small.onnx"
    result = call(bad, "--check", f"{sys.executable} {check} {{model}}", "-o", small, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["checks"] <= 8
    assert facts["of"] == 40
    assert facts["parts"] == [
        {
            "model": str(small),
            "nodes": 1,
            "names": ["n9"],
            "origins": [{"module": "layers.9", "source": "net.py:19", "operator": ""}],
        }
    ]


def test_two_engines_that_agree_leave_nothing_to_reduce(tmp_path: Path) -> None:
    result = call(chain(tmp_path), "--against", "reference", "-o", tmp_path / "s.onnx", "-q")
    assert result.exit_code == 2
    assert "the check passes on the whole model" in result.output
    assert not (tmp_path / "s.onnx").exists()


def test_every_faulty_part_is_saved_when_all_are_asked_for(tmp_path: Path) -> None:
    good = saved(tmp_path / "good.onnx", ["Neg"] * 20)
    bad = saved(tmp_path / "bad.onnx", ["Neg"] * 5 + ["Exp"] + ["Neg"] * 8 + ["Exp"] + ["Neg"] * 5)
    result = call(bad, "--against", good, "-o", tmp_path / "s.onnx", "--all", "--json")
    assert result.exit_code == 0, result.output
    assert [p["names"] for p in json.loads(result.stdout)["parts"]] == [["n5"], ["n14"]]
    assert (tmp_path / "s.2.onnx").exists()
    assert (tmp_path / "s.2.npz").exists()


def test_a_crash_on_opening_needs_no_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchport.comparison import reduce_checks

    def refuses(words: list[str], timeout: float | None) -> tuple[int, str]:
        broken = b"NoSuch" in Path(words[3]).read_bytes()  # what the process of its own would find, in less time
        return (1, "no kernel for NoSuch") if broken else (0, "")

    monkeypatch.setattr(reduce_checks, "run", refuses)
    result = call(chain(tmp_path, 30, "NoSuch"), "--crash", "-o", tmp_path / "s.onnx", "-q", "--expect", "no kernel")
    assert result.exit_code == 0, result.output
    assert "1 of 40 nodes left" in result.output
    assert "n30: net.py:40" in result.output
    assert not (tmp_path / "s.npz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of --check CMD, --crash and --against"),
        (["--crash", "--check", "true {model}"], "give one of --check CMD, --crash and --against"),
        (["--against", "nothing.onnx"], "neither an engine nor a file"),
        (["--against", "reference", "--expect", "x"], "--expect is for --check and --crash"),
        (["--check", "true"], "does not mention {model}"),
        (["--check", "true {model}"], "nothing to reduce"),
        (["--check", "false {model}"], "fails on every model"),
        (["--check", "false {model}", "--timeout", "0"], "--timeout"),
        (["--against", "reference", "-i", "z=float32[2,3]"], "there is no input 'z'"),
    ],
)
def test_mistakes_are_said_in_plain_words(tmp_path: Path, words: list[str], message: str) -> None:
    result = call(chain(tmp_path), "-o", tmp_path / "s.onnx", "-q", *words)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "s.onnx").exists()


def test_a_dynamic_input_has_to_be_given(tmp_path: Path) -> None:
    model = onnx_files.load(chain(tmp_path))
    model.graph.inputs[0].shape = ir.Shape(["batch", 3])
    path = onnx_files.save(model, tmp_path / "d.onnx")
    result = call(path, "--against", "reference", "-o", tmp_path / "s.onnx", "-q")
    assert result.exit_code == 2
    assert "input 'x' has no fixed shape" in result.output
