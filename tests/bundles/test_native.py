"""torchport-run and the C library under AddressSanitizer and UBSan: Python's answers, and hostile files refused."""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import hostile_models
import numpy as np
import onnx
import pytest
from native_build import NATIVE, cmake, wheel_library
from onnx import TensorProto, helper

import torchport as tp
from torchport.engines.onnxruntime import kernel_libraries
from torchport.inputs.samples import save_sample
from torchport.numerics.check import check_output
from torchport.numerics.tolerance import tolerance
from torchport.tensors import Array, numpy_dtype

Run = Callable[..., subprocess.CompletedProcess[str]]
KERNELS = Path(__file__).parents[1] / "operators" / "kernels" / "everything.cc"
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "bool")


def onnx_type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))


def identity(path: Path, arrays: dict[str, Array]) -> Path:
    """A model that gives each input `x` back as `out_x`."""
    inputs = [helper.make_tensor_value_info(n, onnx_type(a.dtype.name), [None] * a.ndim) for n, a in arrays.items()]
    outputs = [
        helper.make_tensor_value_info(f"out_{n}", onnx_type(a.dtype.name), [None] * a.ndim) for n, a in arrays.items()
    ]
    nodes = [helper.make_node("Identity", [name], [f"out_{name}"]) for name in arrays]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def one_input(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one input `x: float32[batch,3]`, whose output is its square."""
    path = tmp_path_factory.mktemp("one") / "square.onnx"
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"], name="square")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


# --- answers ----------------------------------------------------------------------------------------------------------


def test_its_own_tests_pass_under_the_sanitizers(sanitized: Path) -> None:
    done = subprocess.run(["ctest", "--test-dir", sanitized, "--output-on-failure"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "100% tests passed, 0 tests failed out of 3" in done.stdout


def test_the_bits_are_those_of_python(run_native: Run, onnx_file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 12), dtype=np.float32)
    np.savez_compressed(tmp_path / "in.npz", x=x)
    expected = tp.session(onnx_file).run({"x": x})
    np.savez(tmp_path / "golden.npz", **expected)
    done = run_native(
        onnx_file, "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--golden", tmp_path / "golden.npz", "--exact"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same bits") == len(expected)
    with np.load(tmp_path / "out.npz") as found:
        assert {n: found[n].tobytes() for n in found.files} == {n: a.tobytes() for n, a in expected.items()}


def test_arrays_of_every_dtype_and_layout_come_through(run_native: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {d: rng.integers(0, 2, (3, 4)).astype(numpy_dtype(d)) for d in DTYPES}
    arrays |= {"scalar": np.float32(3.5).reshape(()), "empty": np.zeros((0, 2), np.float32)}
    given: dict[str, Array] = {
        **arrays,
        "fortran": np.asfortranarray(rng.standard_normal((3, 4, 5), dtype=np.float32)),
        "big_endian": rng.standard_normal((3, 4)).astype(">f8"),
        "one_axis": np.arange(5, dtype=">i4"),
    }
    native = {n: np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))) for n, a in given.items()}
    native["scalar"] = arrays["scalar"]
    model = identity(tmp_path / "m.onnx", native)
    save_sample(tmp_path / "in.npz", given)  # zip64, and a note that one is bfloat16
    done = run_native(model, "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as file:
        found = {n: file[n] for n in file.files}
    assert json.loads(str(found.pop("__dtypes__"))) == {"out_bfloat16": "bfloat16"}
    for name, array in native.items():
        assert found[f"out_{name}"].shape == array.shape
        assert found[f"out_{name}"].tobytes() == array.tobytes(), name
        assert name == "bfloat16" or found[f"out_{name}"].dtype == array.dtype


def test_a_single_array_goes_in_and_out_as_npy(run_native: Run, one_input: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3]]))
    for spec in ("x.npy", "x=x.npy"):
        done = run_native(one_input, "-i", spec, "-o", "y.npy", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert np.load(tmp_path / "y.npy").tolist() == [[1, 4, 9]]
    np.savez(tmp_path / "two.npz", a=np.float32([[1, 1, 1]]), b=np.float32([[2, 2, 2]]))
    assert "4, 4, 4" in run_native(one_input, "-i", "x=two.npz:b", cwd=tmp_path).stdout


def test_an_operator_library_works_as_in_python(run_native: Run, tmp_path: Path) -> None:
    library = kernel_libraries.build([KERNELS])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("a", "b", "y")]
    node = helper.make_node("ScaleAdd", ["a", "b"], ["y"], domain="tests", alpha=2.5)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("tests", 1)]
    model = tmp_path / "m.onnx"
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", infos[:2], infos[2:]), opset_imports=opsets, ir_version=9),
        model,
    )
    given = {"a": np.float32([1, 2]), "b": np.float32([10, 20])}
    np.savez(tmp_path / "in.npz", **given)
    np.savez(tmp_path / "golden.npz", **tp.session(model, libraries=[library]).run(given))
    args = (model, "-i", tmp_path / "in.npz", "--golden", tmp_path / "golden.npz", "--exact")
    assert run_native(*args, "--library", library).returncode == 0
    without = run_native(*args)
    assert without.returncode == 1
    assert "tests:ScaleAdd" in without.stderr


def test_the_verdict_on_two_arrays_is_that_of_python(run_native: Run, tmp_path: Path) -> None:
    """Python's comparison is the reference: dtypes, masks, NaN, infinities, numbers near the limit."""
    rng = np.random.default_rng(7)
    pairs: dict[str, tuple[Array, Array]] = {}
    for number in range(160):
        dtype = ("float32", "float16", "bfloat16", "float64", "int32", "bool", "int64")[number % 7]
        reference = rng.standard_normal(12) * 10.0 ** rng.integers(-6, 5)
        limit = tolerance(dtype)
        step = (limit.rtol * np.abs(reference) + limit.atol * np.abs(reference).max()) * rng.uniform(0, 1.3)
        candidate = reference + step * (rng.random(12) < 0.3)
        for place in range(2 * (number % 3 == 0)):
            special = rng.choice([np.nan, np.inf, -np.inf, -1e9, -65504.0, 1e4])
            reference[place] = special
            candidate[place] = special if rng.random() < 0.8 else 0.0
        if dtype in ("int32", "int64", "bool"):
            reference, candidate = np.nan_to_num(reference) % 2, np.nan_to_num(candidate) % 2
        with np.errstate(over="ignore"):
            pairs[f"p{number}"] = (reference.astype(numpy_dtype(dtype)), candidate.astype(numpy_dtype(dtype)))
    model = identity(tmp_path / "m.onnx", {name: candidate for name, (_, candidate) in pairs.items()})
    save_sample(tmp_path / "in.npz", {name: candidate for name, (_, candidate) in pairs.items()})
    save_sample(tmp_path / "golden.npz", {f"out_{name}": reference for name, (reference, _) in pairs.items()})
    done = run_native(model, "-i", tmp_path / "in.npz", "--golden", tmp_path / "golden.npz")
    told = {line.split(": ")[0]: line for line in done.stdout.splitlines() if "max abs" in line}
    verdicts = set()
    for name, (reference, candidate) in pairs.items():
        check = check_output(name, reference, candidate, tolerance(reference.dtype.name))
        line = told[f"out_{name}"]
        assert ("FAIL" not in line) == check.ok, (line, check)
        assert f"max abs {check.max_abs:.1e}" in line, (line, check)
        if check.problem:
            assert check.problem.split(";")[0] in line, (line, check)
        verdicts.add(check.ok)
    assert verdicts == {True, False}
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("golden", "words"),
    [
        ({"y": np.float32([[1, 4, 9.5]])}, "1 of 3 numbers differ"),
        ({"y": np.float32([[1, 4, np.nan]])}, "NaN or Inf in other places"),
        ({"y": np.float64([[1, 4, 9]])}, "dtype is float32, expected float64"),
        ({"y": np.float32([1, 4, 9])}, "shape is [1, 3], expected [3]"),
        ({"z": np.float32([[1, 4, 9]])}, "there is no output 'z'"),
        ({}, "y: not in"),
    ],
)
def test_golden_outputs_that_differ_fail(
    run_native: Run, one_input: Path, tmp_path: Path, golden: dict[str, Array], words: str
) -> None:
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3]]))
    np.savez(tmp_path / "golden.npz", **golden)
    done = run_native(one_input, "-i", tmp_path / "x.npy", "--golden", tmp_path / "golden.npz")
    assert done.returncode == (2 if "z" in golden else 1)
    assert words in done.stdout + done.stderr


def test_a_benchmark_counts_its_runs(run_native: Run, one_input: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3]]))
    done = run_native(one_input, "-i", tmp_path / "x.npy", "--bench", "0.2", "--threads", "1")
    assert done.returncode == 0
    assert int(done.stdout.split(" runs: median")[0].split()[-1]) > 10


def test_c_programs_get_the_same_numbers(sanitized: Path, one_input: Path) -> None:
    done = subprocess.run([sanitized / "tests" / "test_c_api", one_input], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert [float(line) for line in done.stdout.split()] == (x * x).reshape(-1).tolist()


def test_threads_share_a_session_and_outputs_outlive_it(sanitized: Path, one_input: Path) -> None:
    done = subprocess.run([sanitized / "tests" / "test_session", one_input], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "no model is given"),
        (("there_is_none.onnx",), "there is no model file 'there_is_none.onnx'"),
        (("/dev/zero",), "not a regular file"),
        (("m.onnx",), "input 'x' is missing"),
        (("m.onnx", "-i", "x=double.npy"), "input 'x' is float64, the model takes float32"),
        (("m.onnx", "-i", "x=flat.npy"), "input 'x' has rank 1, the model takes 2"),
        (("m.onnx", "-i", "x=wide.npy"), "input 'x' has size 4 at axis 1, the model is fixed to 3"),
        (("m.onnx", "-i", "z=flat.npy"), "there is no input 'z'"),
        (("m.onnx", "-i", "x=none.npy"), "there is no file 'none.npy'"),
        (("m.onnx", "-i", "x=3"), "'x=3' is no input"),
        (("m.onnx", "-i"), "-i needs a value"),
        (("m.onnx", "--threads", "0"), "the number of threads is 0"),
        (("m.onnx", "--threads", "1000000"), "the number of threads is 1000000"),
        (("m.onnx", "--threads", "99999999999999"), "--threads is '99999999999999'"),
        (("m.onnx", "--threads", "many"), "--threads is 'many'"),
        (("m.onnx", "--bench", "-1"), "--bench is '-1'"),
        (("m.onnx", "--rtol", "nan", "--golden", "g.npz"), "--rtol is 'nan'"),
        (("m.onnx", "--rtol", "1"), "nothing to compare with"),
        (("m.onnx", "--library", "none.so"), "there is no operator library 'none.so'"),
        (("m.onnx", "--library", "m.onnx"), "'m.onnx' is no library of this system"),
        (("m.onnx", "-o", "out.txt"), "neither .npz nor .npy"),
        (("m.onnx", "--frobnicate"), "there is no option '--frobnicate'"),
        (("cut.onnx",), "'cut.onnx' is no ONNX model, or was cut off"),
    ],
)
def test_a_mistake_says_what_happened_and_what_to_do(
    run_native: Run, one_input: Path, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    (tmp_path / "m.onnx").write_bytes(one_input.read_bytes())
    (tmp_path / "cut.onnx").write_bytes(one_input.read_bytes()[:-7])
    np.save(tmp_path / "double.npy", np.zeros((1, 3)))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((1, 4), np.float32))
    done = run_native(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "\nnext:  " in done.stderr


def test_a_library_that_does_not_load_is_refused(run_native: Run, one_input: Path, tmp_path: Path) -> None:
    library = tmp_path / "libbroken.so"
    library.write_bytes(b"\x7fELF" + bytes(100))
    done = run_native(one_input, "--library", library)
    assert done.returncode == 1
    assert "the operator library 'libbroken.so' cannot be loaded" in done.stderr
    assert "torchport ops build" in done.stderr


def test_dimensions_of_one_name_and_bounds_are_checked(run_native: Run, tmp_path: Path) -> None:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows"]) for n in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {"torchport.bounds": '{"rows": {"min": 4, "step": 2}}'})
    onnx.save(model, tmp_path / "m.onnx")

    def told(a: int, b: int) -> str:
        np.savez(tmp_path / "in.npz", a=np.ones(a, np.float32), b=np.ones(b, np.float32))
        return run_native("m.onnx", "-i", "in.npz", cwd=tmp_path).stderr

    assert told(4, 4) == ""
    assert "dimension 'rows' has two sizes: 4 and 1" in told(4, 1)  # Add itself would broadcast
    assert "dimension 'rows' is 2; the model was exported for sizes from 4 on, multiples of 2" in told(2, 2)
    assert "dimension 'rows' is 5" in told(5, 5)


# --- hostile files ----------------------------------------------------------------------------------------------------


def npy_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def hostile_arrays() -> dict[str, bytes]:
    good = npy_bytes(np.ones((2, 3), np.float32))
    huge = good.replace(b"(2, 3), }" + b" " * 20, b"(2000000000, 300000000), }" + b" " * 3)
    assert huge != good
    assert len(huge) == len(good)
    stored, deflated = zipped({"x.npy": good}), zipped({"x.npy": good}, zipfile.ZIP_DEFLATED)
    listed = deflated.index(b"PK\x01\x02")
    bomb = deflated[: listed + 24] + struct.pack("<I", 0xFFFFFFF0) + deflated[listed + 28 :]
    torn = bytearray(deflated)
    torn[60:70] = bytes(10)
    return {
        "empty.npy": b"",
        "cut.npy": good[:-1],
        "cut_header.npy": good[:40],
        "huge.npy": huge,
        "negative.npy": good.replace(b"(2, 3)", b"(-2,3)"),
        "objects.npy": npy_bytes(np.array([{"a": 1}, None], dtype=object)),
        "structured.npy": npy_bytes(np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])),
        "dates.npy": npy_bytes(np.zeros(2, dtype="datetime64[ns]")),
        "long_double.npy": npy_bytes(np.zeros(2, dtype=np.longdouble)),
        "pickle.npy": b"\x80\x04K\x01.",
        "text.npz": b"hello",
        "cut.npz": stored[:-10],
        "half.npz": stored[: len(stored) // 2],
        "bomb.npz": bomb,
        "torn.npz": bytes(torn),
        "no_array.npz": zipped({"x.txt": b"hello"}),
        "objects.npz": zipped({"x.npy": npy_bytes(np.array([None], dtype=object))}),
        "bzip2.npz": zipped({"x.npy": good}, zipfile.ZIP_BZIP2),
        "huge.npz": zipped({"x.npy": huge}),
        "note.npz": zipped({"x.npy": good, "__dtypes__.npy": npy_bytes(np.array("{"))}),
        "other_width.npz": zipped({"x.npy": good, "__dtypes__.npy": npy_bytes(np.array('{"x": "bfloat16"}'))}),
    }


@pytest.mark.parametrize("name", hostile_arrays())
def test_a_hostile_array_file_is_refused_in_words(run_native: Run, one_input: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(hostile_arrays()[name])
    done = run_native(one_input, "-i", path)
    assert done.returncode == 2
    assert f"{name}" in done.stderr
    assert "cannot be read: " in done.stderr
    assert "\nnext:  " in done.stderr


def test_no_model_file_breaks_the_program(run_native: Run, one_input: Path, tmp_path: Path) -> None:
    """Truncated, changed and made to break a reader: refused in words, or run.

    Two files that are valid ONNX make ONNX Runtime work without end; docs/cpp.md says to vet unknown files in Python.
    """
    rng = random.Random(0)
    good = one_input.read_bytes()
    cases = [(f"cut {n}", good[:n]) for n in range(0, len(good), 16)]
    for number in range(20):
        changed = bytearray(good)
        for _ in range(3):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        cases.append((f"changed {number}", bytes(changed)))
    endless = ("functions unfold", "splits without end")
    cases += [(name, content) for name, content in hostile_models.files() if name not in endless]
    path, refused = tmp_path / "m.onnx", 0
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    for name, content in cases:
        path.write_bytes(content)
        done = run_native(path, "-i", tmp_path / "x.npy")
        refused += done.returncode != 0
        assert done.returncode == 0 or done.stderr.startswith(("error: ", "refused: ")), name
    assert refused > len(cases) // 2


def test_weights_outside_the_models_folder_are_refused(run_native: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "models").mkdir()
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../secret")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", infos[:1], infos[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (tmp_path / "models" / "m.onnx").write_bytes(model.SerializeToString())
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    done = run_native(tmp_path / "models" / "m.onnx", "-i", tmp_path / "x.npy")
    assert done.returncode == 1
    assert "refused: ONNX Runtime refuses the model" in done.stderr


# --- the package for CMake --------------------------------------------------------------------------------------------

CONSUMER = """
cmake_minimum_required(VERSION 3.21)
project(consumer LANGUAGES CXX)
find_package(torchport 0.1 REQUIRED)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE torchport::torchport)
"""
PROGRAM = """
#include <torchport/npz.hpp>
int main(int, char** arguments) {
  const torchport::Array<float> x(torchport::read_npz(arguments[1]).at("x"));
  return x[1] == 2 ? 0 : 1;
}
"""


def test_an_installed_library_is_found_by_find_package(sanitized: Path, tmp_path: Path) -> None:
    cmake("--install", sanitized, "--prefix", tmp_path / "prefix")
    assert (tmp_path / "prefix" / "bin" / "torchport-run").is_file()
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    cmake("-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    cmake("--build", tmp_path / "build")
    np.savez_compressed(tmp_path / "x.npz", x=np.float32([1, 2]))
    assert subprocess.run([tmp_path / "build" / "consumer", tmp_path / "x.npz"]).returncode == 0


def test_the_presets_are_valid() -> None:
    listed = subprocess.run(["cmake", "--list-presets"], cwd=NATIVE, capture_output=True, text=True, check=True).stdout
    assert all(f'"{name}"' in listed for name in ("release", "debug", "sanitize", "openvino"))


def test_missing_headers_say_where_to_get_them(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TORCHPORT_ORT_LIBRARY": wheel_library()}
    command = ["cmake", "-S", str(NATIVE), "-B", str(tmp_path / "build")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    assert "torchport ops headers --fetch" in " ".join(done.stderr.split())
