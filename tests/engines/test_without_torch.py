"""Running, inspecting and editing ONNX models imports no torch."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,4] x) => (float[n,2] y) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
  [first] a = MatMul(x, w)
  [second] b = Relu(a)
  [third] y = Identity(b)
}"""
EDITS = [
    "--rename x=image --bypass third",
    "--replace 'second by Sigmoid'",
    "--set-dim x:0=batch --verify",
    "--set-opset 18",
    "--fold --sort --deduplicate --remove-unused",
    "--set-dtype x=float16",
    "--preprocess 'scale: 2'",
    "--postprocess softmax",
    "--to-input w",
    "--set-weights w.npz",
    "--insert 'Relu after a'",
]
COMMANDS = [
    "run m.onnx -i float32[2,4] -o out.npz",
    "run m.onnx -i x=x.npy --watch a --engine reference",
    "inspect m.onnx",
    "inspect m.onnx --tensor w --at n=8",
    "lint m.onnx",
    "lint m.onnx --engine onnxruntime",
    "diff m.onnx m.onnx",
    "cut m.onnx --to a -o part.onnx",
    "split m.onnx --at a -o part.onnx",
    *(f"edit m.onnx {edit} -o edited.onnx" for edit in EDITS),
]
RUN = """
import sys
from torchport.cli.main import cli
code = cli({words!r}, standalone_mode=False)
print("exit", code, file=sys.stderr)
print("imported", [name for name in {modules!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    np.savez(tmp_path / "w.npz", w=np.ones((4, 2), np.float32))
    return tmp_path


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_verb_imports_no_torch(folder: Path, command: str) -> None:
    told = run(
        RUN.format(
            words=shlex.split(command),
            modules=["torch"],
        ),
        folder,
    )
    assert "exit None" in told
    assert "imported []" in told


def test_a_session_imports_no_torch(folder: Path) -> None:
    code = "import sys, numpy, torchport as tp\n"
    code += "session = tp.session('m.onnx')\n"
    code += "assert session(numpy.ones((2, 4), numpy.float32)).shape == (2, 2)\n"
    code += "assert session.run({'x': numpy.ones((2, 4), numpy.float32)})['y'].shape == (2, 2)\n"
    code += "assert 'torch' not in sys.modules\n"
    run(code, folder)


@pytest.mark.parametrize("verb", ["run", "export", "verify", "lint", "inspect", "cut", "diff", "compare", "reduce"])
def test_the_help_of_a_verb_imports_neither_numpy_nor_onnx(folder: Path, verb: str) -> None:
    told = run(RUN.format(words=[verb, "--help"], modules=["torch", "onnx", "onnx_ir", "numpy"]), folder)
    assert "imported []" in told
