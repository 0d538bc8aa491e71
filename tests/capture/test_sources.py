"""The model from a command-line spec: Python files, modules, and what is said when that fails."""

from __future__ import annotations

import inspect
import pickle
import sys
import warnings
from pathlib import Path

import pytest
import torch

from torchport.capture.inputs import from_example
from torchport.capture.sources import load_source, split_spec
from torchport.errors import SourceError, UntrustedError

MODELS = """
import dataclasses
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.linear = nn.Linear(3, width)
    def forward(self, x):
        return self.linear(x)

class Needy(nn.Module):
    def __init__(self, width, depth, *, bias=True):
        super().__init__()

class Broken(nn.Module):
    def __init__(self):
        raise ValueError("no weights\\nfound")

@dataclasses.dataclass
class Settings:
    width: int = 4

class models:
    Net = Net

net = Net()
compiled = torch.compile(Net())
partial_function = lambda x, y=1: x + y
number = 3

def make(width=5):
    return Net(width)

def double(x):
    return x * 2

def makes_function():
    return double

def makes_nothing():
    pass

def fails():
    raise RuntimeError("cannot reach the server")
"""


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith(("torch", "sympy")):
            del sys.modules[name]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@pytest.mark.parametrize("name", ["Net", "net", "make", "models.Net", "compiled"])
def test_a_class_an_instance_and_a_factory_each_give_a_module(models: Path, name: str) -> None:
    source = load_source(f"{models}:{name}")
    assert isinstance(source.model, torch.nn.Module)
    assert source.label == f"models.py:{name}"
    assert source.model(torch.ones(1, 3)).shape[0] == 1 if name != "compiled" else True


@pytest.mark.parametrize("name", ["double", "partial_function", "makes_function"])
def test_a_function_that_takes_tensors_is_itself_the_model(models: Path, name: str) -> None:
    model = load_source(f"{models}:{name}").model
    assert model(torch.ones(2)).tolist() == [2, 2]


def test_scripted_functions_and_exported_programs_are_models(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n"
        "@torch.jit.script\n"
        "def scripted(x: torch.Tensor) -> torch.Tensor:\n    return x + 1\n"
        "program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))\n"
    )
    assert isinstance(load_source(f"{tmp_path}/m.py:scripted").model, torch.jit.ScriptFunction)
    source = load_source(f"{tmp_path}/m.py:program")
    assert isinstance(source.model, torch.export.ExportedProgram)
    assert from_example(source.example_inputs())[0][0].shape == (1, 3)


def test_a_builtin_function_is_a_model() -> None:
    assert load_source("torch:relu").model is torch.relu


def test_the_file_is_a_real_module_to_inspect_and_pickle(models: Path) -> None:
    model = load_source(f"{models}:Net").model
    assert "self.linear(x)" in inspect.getsource(type(model))
    assert isinstance(pickle.loads(pickle.dumps(model)), type(model))


def test_two_files_of_one_name_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(f"def f(x): return {value}")
    assert [load_source(f"{tmp_path}/{d}/model.py:f").model(0) for d in "ab"] == [1, 2]


def test_a_file_may_import_its_siblings_early_and_late(tmp_path: Path) -> None:
    (tmp_path / "sibling_early.py").write_text("value = 1")
    (tmp_path / "sibling_late.py").write_text("value = 2")
    (tmp_path / "m.py").write_text(
        "import sibling_early\ndef f(x):\n    import sibling_late\n    return sibling_early.value + sibling_late.value"
    )
    assert load_source(f"{tmp_path}/m.py:f").model(0) == 3


def test_a_module_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    source = load_source("some_package.models:Net")
    assert source.label == "some_package.models:Net"
    assert isinstance(source.model, torch.nn.Module)


def test_example_inputs_are_the_modules_else_the_models_own(tmp_path: Path) -> None:
    own = "import torch\nclass N(torch.nn.Module):\n    def example_inputs(self):\n        return 'own'\n"
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "beside.py").write_text(own + "def example_inputs():\n    return 'beside'\n")
    (tmp_path / "value.py").write_text(own + "example_inputs = (1, 2)\n")
    assert load_source(f"{tmp_path}/own.py:N").example_inputs() == "own"
    assert load_source(f"{tmp_path}/beside.py:N").example_inputs() == "beside"
    assert load_source(f"{tmp_path}/value.py:N").example_inputs() == (1, 2)


def test_a_model_without_example_inputs_has_none(models: Path) -> None:
    assert load_source(f"{models}:Net").example_inputs is None


@pytest.mark.parametrize(
    ("spec", "place", "name"),
    [
        (r"C:\x.py:Net", r"C:\x.py", "Net"),
        (r"C:\x.py", r"C:\x.py", ""),
        ("C:/x/y.py:a.b", "C:/x/y.py", "a.b"),
        ("C:x.py", "C:x.py", ""),
        ("x.py:", "x.py", ""),
        ("x.py", "x.py", ""),
        ("a.b:c", "a.b", "c"),
        (r"D:\m\x.pt2", r"D:\m\x.pt2", ""),
    ],
)
def test_a_spec_is_split_at_the_last_colon_that_is_no_drive(spec: str, place: str, name: str) -> None:
    assert split_spec(spec) == (place, name)


# --- what is said when it fails -------------------------------------------------------------------------------


def refused(spec: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        load_source(spec)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_missing_object_names_close_ones_and_the_models_there_are(models: Path) -> None:
    error = refused(f"{models}:Nett")
    assert "no 'Nett'" in error.what
    assert "did you mean 'Net'" in error.next_step
    assert f"{models}:Needy" in error.next_step
    assert "Module" not in error.next_step
    assert "no 'Nothing' in" in refused(f"{models}:models.Nothing").what


def test_a_file_without_an_object_lists_what_could_be_meant(models: Path) -> None:
    for spec in (str(models), f"{models}:"):
        error = refused(spec)
        assert "which object" in error.what
        assert f"{models}:Net, " in error.next_step


def test_a_class_that_needs_arguments_names_them(models: Path) -> None:
    error = refused(f"{models}:Needy")
    assert "cannot be made without width, depth" in error.what
    assert "Needy(width=…, depth=…)" in error.next_step


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("makes_nothing", "returned a NoneType"),
        ("number", "is a int, which is no model"),
        ("Settings", "not an nn.Module"),
    ],
)
def test_what_is_no_model_is_said_to_be_none(models: Path, name: str, says: str) -> None:
    assert says in refused(f"{models}:{name}").what


@pytest.mark.parametrize(
    ("name", "says"),
    [("fails", "RuntimeError: cannot reach the server"), ("Broken", "ValueError: no weights")],
)
def test_code_that_fails_shows_its_own_traceback_only(models: Path, name: str, says: str) -> None:
    error = refused(f"{models}:{name}")
    line = 1 + next(i for i, text in enumerate(MODELS.splitlines()) if "raise " + says.partition(":")[0] in text)
    assert says in error.what
    assert error.where == f"{models}:{line}"
    assert "torchport" not in error.what.replace(str(models), "")
    assert isinstance(error.__cause__, RuntimeError | ValueError)


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("import torch\nimport no_such_package_here\n", "ModuleNotFoundError: No module named", 2),
        ("x = 1\ndef f(:\n", "SyntaxError", 2),
        ("import sys\n\nsys.exit('bye')\n", "SystemExit: bye", 3),
        ("from . import sibling\n", "ImportError: attempted relative import", 1),
        ("class E(BaseException): pass\nraise E\n", "E", 2),
        (
            "def f():\n    1 / 0\ntry:\n    f()\nexcept ZeroDivisionError:\n    raise KeyError('k')\n",
            "KeyError",
            6,
        ),
    ],
)
def test_an_import_that_fails_shows_where_in_the_users_file(tmp_path: Path, text: str, says: str, line: int) -> None:
    (tmp_path / "m.py").write_text(text)
    before = set(sys.modules)
    error = refused(f"{tmp_path}/m.py:Net")
    assert "importing m.py failed: " + says in error.what
    assert error.where == f"{tmp_path}/m.py:{line}"
    assert "importlib" not in error.what
    assert "user_code" not in error.what
    assert error.next_step
    assert error.__cause__ is not None
    assert not [name for name in set(sys.modules) - before if name.startswith("_torchport_source")]


def test_a_file_that_is_interrupted_is_not_a_failed_file(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_source(f"{tmp_path}/m.py:Net")


def test_warnings_of_the_users_file_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import warnings\nwarnings.warn('old')\ndef f(x): return x\n")
    with warnings.catch_warnings(record=True) as seen:
        load_source(f"{tmp_path}/m.py:f")
    assert not seen


def test_a_missing_file_names_close_ones(models: Path) -> None:
    error = refused(f"{models.parent}/model.py:Net")
    assert "there is no file" in error.what
    assert "models.py" in error.next_step
    assert "there is no file" in refused(f"{models.parent}/none/model.pt").what


def test_a_missing_module_is_told_from_a_missing_import_inside_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_package_here")
    assert "there is no module or file 'nowhere_at_all'" in refused("nowhere_at_all.models:Net").what
    assert "importing needs_more failed" in refused("needs_more:Net").what


@pytest.mark.parametrize("spec", ["", ":", "::", "a b:c", "\0.pt", "x" * 5000 + ".pt", "../:x", "é/ü:ñ"])
def test_odd_specs_are_refused_plainly(spec: str) -> None:
    assert refused(spec).what


def test_folders_and_onnx_files_are_told_apart_from_models(tmp_path: Path) -> None:
    (tmp_path / "folder.pt").mkdir()
    assert "is a folder" in refused(f"{tmp_path}/folder.pt").what
    assert "is a folder" in refused(str(tmp_path)).what
    error = refused(f"{tmp_path}/model.onnx")
    assert "is already ONNX" in error.what
    assert "torchport verify" in error.next_step


def test_a_saved_model_has_no_objects(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "m.pt")
    assert "has no object 'Net'" in refused(f"{tmp_path}/m.pt:Net").what


def test_a_pickled_module_is_opened_only_with_trust(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 2), tmp_path / "m.pth")
    with pytest.raises(UntrustedError, match=r"torch\.nn\.modules\.linear\.Linear"):
        load_source(f"{tmp_path}/m.pth")
    assert isinstance(load_source(f"{tmp_path}/m.pth", trust=True).model, torch.nn.Linear)
