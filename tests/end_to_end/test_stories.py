"""What users do, through the installed command, in processes of their own."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

ROOT = Path(__file__).parent.parent.parent
Torchport = Callable[..., subprocess.CompletedProcess[str]]

# The model of the notes: branches on data inside a scripted helper, two inputs, two outputs, named axes.
NOTES_MODEL = """
import torch
from torch import nn


class TestModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.relu = nn.ReLU()

    def _abs(self, x):
        if x.sum() > 0:
            return x
        else:
            return -x

    def forward(self, x, h):
        x = self._abs(x)
        x = self.linear(x)
        x1 = x + h
        x2 = self.relu(x1)
        return x1, x2
"""


def test_the_notes_model_exports_verifies_and_runs(tmp_path: Path, torchport: Torchport) -> None:
    (tmp_path / "notes.py").write_text(NOTES_MODEL)
    done = torchport(
        "export", "notes.py:TestModel", "-i", "x=float32[1,4]", "-i", "h=float32[1,2]",
        "-d", "x:0=batch", "-d", "h:0=batch", "--output-names", "out0,out1", "-o", "model.onnx", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "out  out0: float32[batch,2]" in done.stdout

    proof = torchport("verify", "model.onnx", "--against", "notes.py:TestModel", "-q", cwd=tmp_path)
    assert proof.returncode == 0, proof.stdout + proof.stderr
    assert proof.stderr == ""

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for sign in (1, -1):
        x = np.full((3, 4), sign, np.float32)
        out0, out1 = session.run(None, {"x": x, "h": np.zeros((3, 2), np.float32)})
        assert np.array_equal(np.maximum(out0, 0), out1)
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)


SLOW_MODEL = """
import time
import torch


class Slow(torch.nn.Module):
    def forward(self, x):
        open("started", "w").close()
        time.sleep(30)
        return x
"""


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_MODEL)
    command = [
        str(Path(sys.executable).with_name("torchport")),
        "export",
        "slow.py:Slow",
        "-i",
        "x=float32[2]",
        "-o",
        "m.onnx",
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job is deaf to it
    )
    deadline = time.time() + 60
    while not (tmp_path / "started").exists() and time.time() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in stderr
    assert "Traceback" not in stderr
    assert {p.name for p in tmp_path.iterdir()} <= {"slow.py", "started", "__pycache__"}


def _commands(text: str) -> list[str]:
    """The shell commands of a Markdown file: lines after `$ ` in console blocks, continued by backslashes."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def _python(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the first example's model, torchport's commands on the path."""
    shutil.copy(ROOT / "examples" / "01_first_export" / "model.py", tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    return tmp_path


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_snippet_of_the_documents_runs(document: Path, workplace: Path) -> None:
    snippets = _python(document.read_text())
    if snippets:
        (workplace / "snippets.py").write_text("\n\n".join(snippets))
        done = subprocess.run([sys.executable, "snippets.py"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_the_readmes_commands_run(workplace: Path) -> None:
    commands = [c for c in _commands((ROOT / "README.md").read_text()) if c.startswith("torchport ")]
    assert len(commands) >= 4
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_make_demo_and_make_test_are_in_the_readme() -> None:
    commands = _commands((ROOT / "README.md").read_text())
    assert {"make demo", "make test"} <= set(commands)


def test_the_chinese_readme_has_the_same_code() -> None:
    """So what runs of the English one runs there too; only comments and quotes may differ, and lines be left out."""

    def lines(name: str) -> list[str]:
        text = (ROOT / name).read_text()
        code = [line.partition("  #")[0].rstrip() for block in _python(text) for line in block.splitlines()]
        return [*code, *(command.replace("'", "") for command in _commands(text))]

    english, chinese = lines("README.md"), lines("README.zh-CN.md")
    assert len(chinese) > 15
    assert [line for line in chinese if line not in english] == []


def test_the_chinese_readme_knows_every_verb() -> None:
    text = (ROOT / "README.zh-CN.md").read_text()
    assert [
        verb for verb in ("export", "verify", "compare", "report", "view", "run") if f"torchport {verb}" not in text
    ] == []
