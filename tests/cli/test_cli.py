"""The command line, in this process: results, JSON, exit codes and kind errors."""

from __future__ import annotations

import json
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner, Result

import torchport as tp
from torchport.cli.main import VERBS, cli, main
from torchport.results import SCHEMA
from torchport.torch_compat import registries

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return self.fc(x)

class Threshold(nn.Module):
    def forward(self, x):
        return x * (3 if float(x.abs().max()) > 5 else 1)

class Needs(nn.Module):
    def __init__(self, width):
        super().__init__()

def make():
    return Net()

def random_one():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)
    return Noise()

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


def files_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"__pycache__"}


def test_export_prints_the_proof_and_saves(folder: Path) -> None:
    done = run("export", "model.py:Net", "--input", "x=float32[1,4]", "--dynamic", "x:0=batch", "-o", "m.onnx")
    assert done.exit_code == 0, done.output
    assert "in   x: float32[batch,4]" in done.stdout
    assert "proven: " in done.stdout
    assert "route export: capturing" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert tp.session(folder / "m.onnx")(torch.ones(5, 4)).shape == (5, 3)


def test_export_then_verify_then_run_from_json(folder: Path) -> None:
    done = run(
        "export", "model.py:make", "-i", "x=float32[2,4]", "-d", "x:0=n", "-o", "m.onnx", "--json", "--opset", 13
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["proven"] is True
    assert result["opset"] == 13
    assert result["proof"]["passed"] is True
    assert result["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n", 4]}]
    assert done.stderr == ""

    proof = run("verify", "m.onnx", "--against", "model.py:Net", "--json")
    assert proof.exit_code == 0, proof.output
    assert json.loads(proof.stdout)["passed"] is True
    assert json.loads(proof.stdout)["schema"] == result["schema"] == SCHEMA

    other = run("verify", "m.onnx", "--against", "model.py:Net", "--seed", 1, "-q")
    assert other.exit_code == 1
    assert "NOT proven" in other.stdout
    assert "the weights in the file are not the PyTorch model's" in other.stdout

    np.save(folder / "x.npy", np.ones((3, 4), np.float32))
    ran = run("run", "m.onnx", "--input", "x=x.npy", "-o", "out.npz", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["outputs"]["output"]["shape"] == [3, 3]
    with np.load(folder / "out.npz") as saved:
        assert saved["output"].shape == (3, 3)


def test_run_shows_outputs(onnx_file: Path) -> None:
    done = run("run", onnx_file, "-i", "float32[2,3,8,8]", "--quiet")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert done.stdout.startswith("logits: float32[2,5]")


def test_doctor_knows_the_engines() -> None:
    done = run("doctor", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["healthy"] is True
    assert {"onnxruntime", "reference"} <= {c["name"] for c in found["checks"] if c["group"] == "engines"}


def test_doctor_lists_operators_that_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registries.operator
    monkeypatch.setattr(registries, "operator", lambda name: None if name == "aten::roll.default" else real(name))
    done = run("doctor", "--json")
    assert done.exit_code == 0, done.output
    [check] = [c for c in json.loads(done.stdout)["checks"] if c["group"] == "operators"]
    assert check["status"] == "optional"
    assert "aten::roll" in check["detail"]


def test_the_programs_of_torch_are_models_too(folder: Path) -> None:
    linear = torch.nn.Linear(4, 3)
    program = torch.export.export(linear, (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, folder / "m.pt2")
    done = run("export", "m.pt2", "-o", "m.onnx")
    assert done.exit_code == 0, done.output
    x = torch.randn(5, 4)
    torch.testing.assert_close(tp.session(folder / "m.onnx")(x), linear(x).detach())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_files_are_models_too(folder: Path) -> None:
    torch.jit.script(torch.nn.Linear(4, 3)).save(folder / "m.pt")
    done = run("export", "m.pt", "-i", "input=float32[2,4]", "-d", "input:0=n", "-o", "m.onnx")
    assert done.exit_code == 0, done.output
    assert "route 'script'" in done.stdout


X = ("--input", "x=float32[2,4]")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("missing.py:Net", *X), 2, "missing.py"),
        (("model.py:Nett", *X), 2, "Net"),
        (("model.py:number", *X), 2, "model"),
        (("model.py:Needs", *X), 2, "width"),
        (("model.py:Net",), 2, "no example inputs"),
        (("model.py:Net", "--input", "x=float23[2,4]"), 2, "float23"),
        (("model.py:Net", "--input", "x=float32[2,5]"), 2, "raises RuntimeError"),
        (("model.py:Net", "--input", "x=float64[2,4]"), 2, "raises RuntimeError"),
        (("model.py:Net", "--input", "y=float32[2,4]"), 2, "missing a required argument: 'x'"),
        (("model.py:Net", *X, *X), 2, "x"),
        (("model.py:Net", *X, "--dynamic", "x:9=n"), 2, "axis 9 of input 'x' is out of range"),
        (("model.py:Net", *X, "--dynamic", "z:0=n"), 2, "there is no input or output 'z'"),
        (("model.py:Net", *X, "--dynamic", "x"), 2, "is no dynamic dimension"),
        (("model.py:Net", *X, "--dynamic", "x:0=n,1=n"), 2, "has two sizes in the example"),
        (("model.py:Net", *X, "--opset", "3"), 2, "opset 3"),
        (("model.py:Net", *X, "--opset", "99"), 2, "opset 99"),
        (("model.py:Net", *X, "--custom-opset", "mine"), 2, "DOMAIN=N"),
        (("model.py:random_one", *X), 1, "answers differently each time"),
        (("model.py:Threshold", *X, "--route", "trace"), 1, "frozen a choice"),
    ],
)
def test_bad_input_is_said_kindly_and_writes_nothing(
    folder: Path, args: tuple[str, ...], code: int, message: str
) -> None:
    done = run("export", *args, "-o", "out.onnx")
    assert done.exit_code == code, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert files_in(folder) == {"model.py"}


@pytest.mark.parametrize("verb", ["run", "verify"])
@pytest.mark.parametrize(
    "content", [b"", b"<html></html>", b"\x80\x04K\x01.", None], ids=["empty", "html", "pickle", "cut"]
)
def test_files_that_are_no_onnx(folder: Path, onnx_file: Path, verb: str, content: bytes | None) -> None:
    (folder / "bad.onnx").write_bytes(onnx_file.read_bytes()[:500] if content is None else content)
    more = ("--against", "model.py:Net") if verb == "verify" else ()
    done = run(verb, "bad.onnx", *more)
    assert done.exit_code == 2
    assert "bad.onnx" in done.stderr
    assert "Traceback" not in done.output


def test_an_unwritable_target_is_said_before_the_model_is_loaded(folder: Path) -> None:
    done = run("export", "does_not_exist.py:Net", "-o", "no/such/folder/m.onnx")
    assert done.exit_code == 2
    assert "folder" in done.stderr


def test_an_import_error_shows_the_users_own_traceback(folder: Path) -> None:
    (folder / "broken.py").write_text("import torch\n\ndef f():\n    import no_such_module_here\n\nf()\n")
    done = run("export", "broken.py:Net", "-o", "m.onnx")
    assert done.exit_code == 2
    assert "no_such_module_here" in done.stderr
    assert "broken.py" in done.stderr
    assert "torchport/" not in done.stderr


def test_a_pickle_does_not_run(folder: Path) -> None:
    payload = b"cos\nsystem\n(S'touch owned'\ntR."
    (folder / "evil.pt").write_bytes(payload)
    done = run("export", "evil.pt", *X, "-o", "m.onnx")
    assert done.exit_code == 2
    assert not (folder / "owned").exists()
    ran = run("export", "model.py:Net", "--input", "x=evil.pt", "-o", "m.onnx")
    assert ran.exit_code == 2
    assert not (folder / "owned").exists()


class Writes(torch.nn.Module):
    """TorchScript that writes a file while it is being opened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.ones(1), state[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_that_writes_is_refused_in_three_lines_and_writes_nothing(folder: Path) -> None:
    torch.jit.save(torch.jit.script(Writes(str(folder / "owned"))), folder / "plain.pt")
    with zipfile.ZipFile("plain.pt") as old, zipfile.ZipFile("evil.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name.replace("/code/", "/Code/"), old.read(name))
    for file, says in (("plain.pt", "aten::save"), ("evil.pt", "Code/__torch__")):
        done = run("export", file, *X, "-o", "m.onnx", "-q")
        assert done.exit_code == 2
        lines = done.stderr.strip().splitlines()
        assert [line[:6] for line in lines] == ["error:", "where:", "next: "]
        assert says in lines[0]
        assert "--trust" in lines[2]
        assert not (folder / "owned").exists()
        assert not (folder / "m.onnx").exists()


def test_errors_are_json_too(folder: Path) -> None:
    done = run("export", "model.py:Threshold", *X, "--route", "trace", "-o", "m.onnx", "--json")
    assert done.exit_code == 1
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["error"] == "ProofError"
    assert found["proof"]["passed"] is False
    assert found["attempts"][0]["route"] == "trace"


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = run("export", "missing.py:Net", "-o", "m.onnx", "--debug")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr


def test_a_misspelled_verb_gets_a_suggestion() -> None:
    done = run("exprot")
    assert done.exit_code == 2
    assert "did you mean 'export'?" in done.output


@pytest.mark.parametrize(
    ("args", "what", "where", "hint"),
    [
        (("export", "model.py:Net"), "Missing option '--output'", "torchport export", "torchport export --help"),
        (
            ("export", "m.py:N", "-o", "m.onnx", "--mode", "no"),
            "Invalid value for '--mode'",
            "torchport export",
            "--help",
        ),
        (("ops", "finde", "x"), "No such command 'finde'", "torchport ops", "torchport ops --help"),
        (("exprot",), "there is no verb 'exprot'", "torchport", "did you mean 'export'?"),
    ],
)
def test_a_wrong_call_has_the_form_of_every_error(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    what: str,
    where: str,
    hint: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["torchport", *args, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["error"], found["where"]) == (SCHEMA, "OptionError", where)
    assert what in found["what"]
    assert hint in found["next"]

    monkeypatch.setattr(sys, "argv", ["torchport", *args])
    with pytest.raises(SystemExit):
        main()
    assert [line[:6] for line in capsys.readouterr().err.splitlines()] == ["error:", "where:", "next: "]


@pytest.mark.parametrize(
    "args",
    [
        ("run", "m.onnx", "--input", "logits=no.npy"),
        ("run", "m.onnx", "-i", "float32[2]", "-i", "float32[2]"),
        ("compare", "there.npz", "m.onnx"),
        ("compare", "m.onnx", "m.onnx", "--data", "samples/"),
    ],
)
def test_missing_files_and_inputs_say_what_to_do_next(folder: Path, onnx_file: Path, args: tuple[str, ...]) -> None:
    (folder / "m.onnx").write_bytes(onnx_file.read_bytes())
    done = run(*args, "-q")
    assert done.exit_code == 2
    assert "\nnext:  " in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_that_fits_a_terminal_and_json(verb: str) -> None:
    code = import_module(f"torchport.cli.{verb}").command
    for further in [[name] for name in code.commands] if isinstance(code, click.Group) else [[]]:
        done = run(verb, *further, "--help")
        assert done.exit_code == 0
        assert "--json" in done.output
        assert max(map(len, done.output.splitlines())) <= 80


def test_example_inputs_that_fail_show_the_users_own_traceback(folder: Path) -> None:
    (folder / "bad.py").write_text(MODEL + "\ndef example_inputs():\n    return 1 / 0\n")
    done = run("export", "bad.py:Net", "-o", "m.onnx")
    assert done.exit_code == 2
    assert "ZeroDivisionError" in done.stderr
    assert "bad.py" in done.stderr
    assert "torchport/" not in done.stderr


@pytest.mark.parametrize("name", ["input.1", "serving_default_x:0", "/encoder/x", "a=b", "x y"])
def test_inputs_of_an_onnx_file_may_be_called_anything(folder: Path, name: str) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", [name], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch size", 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch size", 3])],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "strange.onnx")
    spec = f"{name}=float32[4,3]"
    assert run("run", "strange.onnx", "-i", spec, "-o", "y.npy").exit_code == 0
    assert np.load(folder / "y.npy").shape == (4, 3)
    edited = run("edit", "strange.onnx", "--fold", "--verify", "-i", spec, "-o", "out.onnx")
    assert edited.exit_code == 0, edited.output
    compared = run("compare", "strange.onnx", "--engines", "onnxruntime,reference", "-i", spec)
    assert compared.exit_code == 0, compared.output
    wrong = run("run", "strange.onnx", "-i", "z=float32[4,3]")
    assert wrong.exit_code == 2
    assert "there is no input 'z'" in wrong.output


@pytest.mark.parametrize(
    "args",
    [
        ("export", "model.py:Net", "-i", "x=float32[2,4]", "-o", "a.onnx"),
        ("verify", "m.onnx", "--against", "model.py:Net"),
        ("run", "m.onnx"),
        ("compare", "m.onnx", "m.onnx"),
        ("compare", "model.py:Net", "m.onnx"),
    ],
)
def test_a_library_that_is_not_there_is_said_at_once(folder: Path, onnx_file: Path, args: tuple[str, ...]) -> None:
    (folder / "m.onnx").write_bytes(onnx_file.read_bytes())
    done = run(*args, "--library", "nolib.so")
    assert done.exit_code == 2, done.output
    assert "there is no operator library 'nolib.so'" in done.stderr
    assert "route" not in done.stderr
    assert "unproven" not in done.stderr


def test_swapped_arguments_of_verify_are_noticed(folder: Path) -> None:
    found = run("verify", "model.py:Net", "--against", "net.onnx")
    assert found.exit_code == 2
    assert "torchport verify net.onnx --against model.py:Net" in found.output
    found = run("verify", "a.onnx", "--against", "b.onnx")
    assert found.exit_code == 2
    assert "torchport compare b.onnx a.onnx" in found.output
