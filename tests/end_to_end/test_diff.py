"""`torchport diff A B`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner, Result
from onnx import numpy_helper

from torchport.cli.diff import command

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N,4] x) => (float[N,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
  a = Relu(x)
  b = Mul(a, w)
  y = Tanh(b)
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models that differ in one operator, and the folder to be in."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "before.onnx")
    onnx.save(onnx.parser.parse_model(MODEL.replace("Tanh", "Sigmoid")), "after.onnx")
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


def test_equal_models_exit_0_and_name_both(folder: Path) -> None:
    done = run("before.onnx", "before.onnx")
    assert done.exit_code == 0
    assert done.stdout == "before.onnx and before.onnx are the same: 3 nodes, 1 weight\n"
    assert done.stderr == ""


def test_models_that_differ_exit_1_and_say_in_what(folder: Path) -> None:
    done = run("before.onnx", "after.onnx")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "before.onnx → after.onnx",
        "  1 node changed",
        "",
        "nodes: 3",
        "  changed  y (Tanh): operator Tanh → Sigmoid",
    ]


def test_json_has_every_change(folder: Path) -> None:
    done = run("before.onnx", "after.onnx", "--json")
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert (said["same"], said["only_names"]) == (False, False)
    change = said["nodes"]["changed"][0]
    assert (change["name"], change["operator"], change["operator_after"]) == ("y", "Tanh", "Sigmoid")
    assert said["a"] == "before.onnx"
    assert json.loads(run("before.onnx", "before.onnx", "--json").stdout)["same"] is True


def test_json_has_infinity_as_text(folder: Path) -> None:
    model = onnx.load("before.onnx")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([1, 2, 3, np.inf]), "w"))
    onnx.save(model, "infinite.onnx")
    said = json.loads(run("before.onnx", "infinite.onnx", "--json").stdout)
    assert said["weights"]["changed"][0]["apart"]["max_abs"] == "inf"


def test_all_lists_what_is_left_out_otherwise(folder: Path) -> None:
    steps = "".join(f"  a{n} = Neg({f'a{n - 1}' if n else 'a'})\n" for n in range(15))
    onnx.save(onnx.parser.parse_model(MODEL.replace("  b = Mul(a,", steps + "  b = Mul(a14,")), "longer.onnx")
    assert "and 5 more (--all shows them)" in run("before.onnx", "longer.onnx").stdout
    everything = run("before.onnx", "longer.onnx", "--all").stdout
    assert everything.count("(Neg)") == 15
    assert "more" not in everything


def test_mistakes_exit_2_and_name_the_file(folder: Path) -> None:
    Path("text.onnx").write_text("this is not a model")
    model = onnx.load("before.onnx")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([1, 2, 3, 4]), "w"))
    onnx.save(model, "outside.onnx", save_as_external_data=True, location="outside.data", size_threshold=0)
    Path("outside.data").unlink()
    for wrong, why in (
        ("none.onnx", "cannot be opened"),
        ("text.onnx", "not an ONNX model"),
        ("outside.onnx", "missing"),
    ):
        for order in (("before.onnx", wrong), (wrong, "before.onnx")):
            done = run(*order)
            assert done.exit_code == 2, done.output
            assert why in done.stderr
            assert wrong in done.stderr
            assert "Traceback" not in done.stderr
    assert run("before.onnx").exit_code == 2


def test_a_broken_model_is_an_error_in_json_too(folder: Path) -> None:
    done = run("before.onnx", "none.onnx", "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"] == "FileError"


def test_torch_is_not_imported(folder: Path) -> None:
    code = (
        "import sys\nfrom torchport.cli.diff import command\n"
        "command(['before.onnx', 'after.onnx'], standalone_mode=False)\n"
        "sys.exit(9 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "operator Tanh → Sigmoid" in done.stdout
