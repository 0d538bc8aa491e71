"""Pages in a real browser: they open, expand, search, select, and run nothing of a hostile model.

`viewer/tests/browser.mjs` makes the checks in one Chromium; each is a test here. Screenshots stay beside the pages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest
from large_graphs import another, transformer
from report_models import hostile, nested

import torchport as tp
from torchport.reports import page

VIEWER = Path(page.__file__).parent / "viewer"
SCRIPT = VIEWER / "tests" / "browser.mjs"
CHECKS = re.findall(r'^  async "(.+)"\(\)', SCRIPT.read_text(), re.M)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make browser` installs it, as root")


@pytest.fixture(scope="module")
def outcomes(onnx_file: Path, exported: tp.Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    tp.report(onnx_file, folder / "small.html")
    tp.report(_with_other_bias(exported.model), folder / "errors.html", against=onnx_file)
    tp.report(transformer(5000), folder / "large.html")
    tp.report(another(100), folder / "diff.html", results=[tp.graph.diff(transformer(100), another(100))])
    tp.report(nested(), folder / "nested.html")
    tp.report(hostile(), folder / "hostile.html")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where Node is PyPI's
    with tp.view(onnx_file) as viewing:
        command = ["node", str(SCRIPT), str(folder), str(CHROMIUM), viewing.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = {"folder": str(folder)} | json.loads(done.stdout)
    return found


def _with_other_bias(model: ir.Model) -> ir.Model:
    changed = model.clone()
    bias = changed.graph.initializers["fc.bias"]
    assert bias.const_value is not None
    bias.const_value = ir.tensor(bias.const_value.numpy() + 0.5, name="fc.bias")
    return changed


@pytest.mark.parametrize("check", CHECKS)
def test_in_the_browser(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""


def test_the_part_that_was_saved_is_the_part_that_was_cut(outcomes: dict[str, str]) -> None:
    part = tp.graph.load(Path(outcomes["folder"]) / "part.onnx")
    assert [node.op_type for node in part.graph] == ["Conv", "Relu", "ReduceMean"]
    assert [value.name for value in part.graph.outputs] == ["pooled"]
