"""torchport cpp: a project that builds, passes its tests and gives the bits of Python; and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import torchport as tp
from torchport.cli.main import cli
from torchport.engines.onnxruntime import kernel_libraries
from torchport.errors import EngineError, OptionError, RandomModelError, SaveError
from torchport.inputs.samples import save_sample
from torchport.tensors import numpy_dtype

KERNELS = Path(__file__).parents[1] / "operators" / "kernels" / "everything.cc"
INFO = helper.make_tensor_value_info


def saved(
    path: Path, nodes: list[onnx.NodeProto], inputs: list[object], outputs: list[object], ir_version: int = 9
) -> Path:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("tests", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), path)
    return path


@pytest.fixture(scope="module")
def library() -> Path:
    return kernel_libraries.build([KERNELS])


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names that C++ does not take, many dtypes, a scalar, dimensions that must agree, and an operator of its own."""
    evil = 'evil"\n#error "\\'
    inputs = [
        INFO("input.1", TensorProto.FLOAT, ["rows", 3]),
        INFO("input_1", TensorProto.FLOAT, ["rows", 3]),
        INFO("class", TensorProto.INT64, ["rows"]),
        INFO("größe", TensorProto.BOOL, []),
        INFO("half", TensorProto.FLOAT16, [2]),
        INFO("brain", TensorProto.BFLOAT16, [2]),
        INFO(evil, TensorProto.DOUBLE, ["n\nint x;"]),
    ]
    outputs = [
        INFO("sum/out:0", TensorProto.FLOAT, ["rows", 3]),
        INFO("return", TensorProto.INT64, ["rows"]),
        INFO("not", TensorProto.BOOL, []),
        INFO("half_out", TensorProto.FLOAT16, [2]),
        INFO("brain_out", TensorProto.BFLOAT16, [2]),
        INFO("double", TensorProto.DOUBLE, ["n\nint x;"]),
    ]
    nodes = [
        helper.make_node("ScaleAdd", ["input.1", "input_1"], ["sum/out:0"], domain="tests", alpha=0.3),
        helper.make_node("Neg", ["class"], ["return"]),
        helper.make_node("Not", ["größe"], ["not"]),
        helper.make_node("Exp", ["half"], ["half_out"]),
        helper.make_node("Identity", ["brain"], ["brain_out"]),
        helper.make_node("Sin", [evil], ["double"]),
    ]
    return saved(tmp_path_factory.mktemp("strange") / "my model.onnx", nodes, inputs, outputs, ir_version=14)


@pytest.fixture(scope="module")
def built(strange: Path, library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tp.Session]:
    """The project of the strange model, built without warnings in a folder with a space."""
    folder = tmp_path_factory.mktemp("project") / "the app"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CMAKE_BUILD_TYPE", "Debug")
        patch.setenv("CXXFLAGS", "-O0 -Werror -Wpedantic -Wshadow -Wconversion -Wsign-conversion")
        project = tp.cpp_project(strange, folder, libraries=[library], build=True)
    assert project.built
    assert not project.findings
    return folder, tp.session(strange, libraries=[library])


def test_a_project_builds_and_gives_the_bits_of_python(built: tuple[Path, tp.Session]) -> None:
    folder, _ = built
    done = subprocess.run(["ctest", "--test-dir", folder / "build"], capture_output=True, text=True)
    assert "100% tests passed, 0 tests failed out of 2" in done.stdout
    exact = subprocess.run([folder / "build" / "test_golden", "--exact"], capture_output=True, text=True)
    assert exact.returncode == 0
    assert exact.stdout.count("same bits") == 6


def test_its_program_runs_other_inputs_as_python_does(built: tuple[Path, tp.Session], tmp_path: Path) -> None:
    folder, session = built
    rng = np.random.default_rng(5)
    sizes = {"rows": 7, "n\nint x;": 4}
    feeds = {
        i.name: np.asarray(rng.standard_normal([sizes.get(str(d), d) for d in i.shape or ()]) * 3).astype(
            numpy_dtype(i.dtype)
        )
        for i in session.inputs
    }
    save_sample(tmp_path / "in.npz", feeds)
    program = folder / "build" / "my_model"
    done = subprocess.run([program, tmp_path / "in.npz", tmp_path / "out.npz"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = session.run(feeds)
    with np.load(tmp_path / "out.npz") as found:
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes(), name


def test_a_changed_golden_output_fails_the_test(built: tuple[Path, tp.Session]) -> None:
    folder, _ = built
    golden = folder / "golden" / "outputs.npz"
    kept = golden.read_bytes()
    with np.load(golden) as read:
        arrays = {n: read[n] for n in read.files}
    arrays["double"] = arrays["double"] + 0.1  # a model with bfloat16 inside is held to that
    try:
        with zipfile.ZipFile(golden, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array)
        done = subprocess.run([folder / "build" / "test_golden"], capture_output=True, text=True)
        assert done.returncode == 1
        assert "double: WRONG: 2 of 2 numbers differ" in done.stdout
    finally:
        golden.write_bytes(kept)


def test_dimensions_that_must_agree_are_checked(built: tuple[Path, tp.Session], tmp_path: Path) -> None:
    folder, _ = built
    with np.load(folder / "golden" / "inputs.npz") as read:
        arrays = {n: read[n] for n in read.files}
    arrays["class"] = np.zeros(9, np.int64)
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    done = subprocess.run([folder / "build" / "my_model", tmp_path / "in.npz"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "dimension 'rows' has two sizes: 2 and 9" in done.stderr


def test_a_model_file_that_was_exchanged_is_refused(built: tuple[Path, tp.Session], onnx_file: Path) -> None:
    folder, _ = built
    model = folder / "model.onnx"
    kept = model.read_bytes()
    try:
        model.write_bytes(onnx_file.read_bytes())
        done = subprocess.run([folder / "build" / "my_model"], capture_output=True, text=True)
        assert done.returncode == 2
        assert "the model has other inputs than this program was written for" in done.stderr
    finally:
        model.write_bytes(kept)


# --- without a build --------------------------------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(cli, ["cpp", *map(str, args)])


def test_the_command_writes_a_project_and_says_what_is_next(call: Callable[..., Result], onnx_file: Path) -> None:
    done = call(onnx_file, "-o", "app", "-i", "x=float32[2,3,8,8]", "-q")
    assert done.exit_code == 0, done.output
    assert "cd app && cmake -B build && cmake --build build && ctest --test-dir build" in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    with np.load("app/golden/inputs.npz") as golden:
        assert golden["x"].shape == (2, 3, 8, 8)
    assert "torchport::Array<float> x;  // x: float32[batch,3,height,width]" in Path("app/model.hpp").read_text()
    assert sorted(p.name for p in Path("app").iterdir()) == [
        *(".gitignore", "CMakeLists.txt", "README.md", "cmake", "golden", "include", "local.cmake", "main.cpp"),
        *("model.hpp", "model.onnx", "test_golden.cpp"),
    ]
    texts = [p.read_text() for p in Path("app").iterdir() if p.suffix in (".hpp", ".cpp", ".txt", ".md")]
    assert not [found for text in texts if (found := re.search("@[A-Z_]+@", text))]


def test_the_result_has_a_json_form(call: Callable[..., Result], onnx_file: Path) -> None:
    told = json.loads(call(onnx_file, "-o", "app", "--json").output)
    assert told["schema"] == 1
    assert (told["target"], told["engine"], told["built"]) == ("small", "onnxruntime", False)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("none.onnx", "-o", "app"), "none.onnx"),
        (("m.onnx", "-o", "full"), "is there already"),
        (("m.onnx", "-o", "no/such/app"), "is missing or cannot be written"),
        (("m.onnx", "-o", "/proc/app"), "cannot be made"),
        (("m.onnx", "-o", "app", "--engine", "reference"), "there is no C++ for the engine 'reference'"),
        (("m.onnx", "-o", "app", "--library", "none.so"), "there is no operator library 'none.so'"),
        (("m.onnx", "-o", "app", "-i", "x=float64[1,3,8,8]"), "input 'x' is float64, the model takes float32"),
        (("m.onnx", "-o", "app", "-i", "x=float32[1,3]"), "input 'x' has rank 2, the model takes 4"),
        (("m.onnx",), "Missing option '--output'"),
    ],
)
def test_a_mistake_leaves_no_folder(
    call: Callable[..., Result], onnx_file: Path, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_file.read_bytes())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = call(*args)
    assert done.exit_code == 2
    assert words in done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "m.onnx"]


def test_missing_tools_are_said_with_what_to_install(
    onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    project = tp.cpp_project(onnx_file, tmp_path / "app")
    assert [f.message for f in project.findings] == ["there is no CMake here", "there is no C++ compiler here"]
    assert "apt install cmake" in str(project)
    with pytest.raises(OptionError, match="cannot be built: there is no CMake here") as error:
        tp.cpp_project(onnx_file, tmp_path / "other", build=True)
    assert "apt install cmake" in str(error.value)
    assert not (tmp_path / "other").exists()


def test_a_folder_that_is_there_and_empty_is_filled(onnx_file: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    tp.cpp_project(onnx_file, tmp_path / "app")
    assert (tmp_path / "app" / "model.hpp").is_file()
    with pytest.raises(SaveError, match="is there already"):
        tp.cpp_project(onnx_file, tmp_path / "app")


def test_a_model_with_random_outputs_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    infos = [INFO(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    path = saved(tmp_path / "m.onnx", [node], infos[:1], infos[1:])
    with pytest.raises(RandomModelError, match="output 'y' is another each time"):
        tp.cpp_project(path, tmp_path / "app")


def test_an_operator_that_pytorch_runs_is_refused(strange: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="nothing here runs the operator tests::ScaleAdd"):
        tp.cpp_project(strange, tmp_path / "app")
