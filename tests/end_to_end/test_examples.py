"""The examples run as their readers run them, and show what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# what each prints when all is well, and what it shows when a link is missing
SHOWN = {
    "01_first_export": ["proven: ", "logits (5, 10)"],
    "02_asinh_symbolic": [
        "opset 9: ['Asinh'], proven",
        "opset 20: ['Asinh'], proven",
        "cannot be expressed in opset 8",
        "the mapping is wrong: the ONNX model does not give the PyTorch model's answers",
    ],
    "03_deform_conv2d": [
        "opset 19: ['Conv', 'DeformConv'], proven",
        "opset 13: the model cannot be expressed in opset 13 | use opset 19",
        "opset 13: a node ['custom::deform_conv2d']",
        "custom::deform_conv2d has no kernel: PyTorch ran it for the proof",
        "nothing here runs the operator custom::deform_conv2d",
    ],
    "04_my_add_cpp": [
        "by symbolic: ['Mul', 'Mul', 'Add']",
        "no ONNX translation for my_lib.my_add",
        "by kernel: ['my_lib::MyAdd']",
    ],
    "05_foo_op": [
        "devtech::FooOp has no kernel: PyTorch ran it for the proof",
        "nothing here runs the operator devtech::FooOp (domain 'devtech')",
        "by the kernel, off by",
        "removed, off by",
    ],
    "06_bicubic_resize": [
        "opset 11: Resize {'mode': 'cubic'",
        "opset 18: Resize {'mode': 'cubic'",
        "opset 10: the model cannot be expressed in opset 10 | use opset 11",
    ],
}


def test_every_example_is_here() -> None:
    assert {p.name for p in EXAMPLES.iterdir() if p.is_dir()} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("*.onnx", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, capture_output=True, text=True, env=_environment(), timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for text in SHOWN[name]:
        assert text in done.stdout, f"{text!r} is not in\n{done.stdout}"
    off = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if ", off by " in line]
    assert all(number < 1e-5 for number in off)
    if name == "04_my_add_cpp":
        _runs_in_cpp(folder)


def _environment() -> dict[str, str]:
    """cpp_extension looks for ninja, which is installed beside this Python."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _runs_in_cpp(folder: Path) -> None:
    """The library serves a C++ program too: the runtime is inside the onnxruntime wheel, under another name."""
    import onnxruntime

    from torchport.engines.onnxruntime import headers, kernel_libraries

    library = kernel_libraries.build([folder / "my_add_kernel.cc"])
    runtime = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    (folder / "libonnxruntime.so.1").symlink_to(runtime)
    program = folder / "run_in_cpp"
    command = [*kernel_libraries.compiler(), "-std=c++17", str(folder / "run_in_cpp.cpp"), f"-I{headers.find().folder}"]
    subprocess.run(
        [*command, str(folder / "libonnxruntime.so.1"), f"-Wl,-rpath,{folder}", "-o", str(program)], check=True
    )
    done = subprocess.run([str(program), "my_add.onnx", str(library)], cwd=folder, capture_output=True, text=True)
    assert done.stdout.strip() == "in C++: 23 46 69 92", done.stderr
