"""A process obeys commands, sleeps between them, and never outlives its use."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import torchport as tp
from torchport.benchmark import child
from torchport.benchmark.children import Candidate, Worker
from torchport.benchmark.command_process import CommandError

BODY = "(float[n] x) => (float[n] y) { y = Relu(x) }"
FEEDS = {"x": np.float32([-1, 2])}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("children") / "relu.onnx"
    tp.graph.save(ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17]> g {BODY}'), path)
    return path


def state(worker: Worker) -> str:
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_obeys_and_is_stopped_between_commands(model: Path) -> None:
    """The kind `bare` starts in half a second; another kind differs in how it opens a model."""
    with Worker(Candidate("o", "bare", str(model), threads=1)) as worker:
        worker.start()
        worker.started()
        opened = worker.open()
        assert opened["version"]
        assert opened["load_seconds"] > 0
        assert worker.run("feeds", FEEDS)["first_seconds"] > 0
        assert 0 < worker.warm_up("feeds", 0.1) < 0.1
        measured = worker.measure("feeds", 0.05, least=3)
        assert len(measured["times"]) >= 3
        assert measured["wall"] >= sum(measured["times"])
        alone = len(measured["times"])
        crowd = worker.measure("feeds", 0.05, least=3, clients=3)
        assert len(crowd["times"]) >= 9
        assert alone
        outputs = worker.outputs()
        assert len(outputs) == 3
        for [y] in outputs:
            np.testing.assert_array_equal(y, np.float32([0, 2]))
        time.sleep(0.05)
        assert state(worker) in "Tt"
        pid = worker.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_fails_leaves_the_worker_alive(model: Path) -> None:
    with Worker(Candidate("o", "bare", str(model))) as worker:
        worker.start()
        worker.started()
        worker.open()
        with pytest.raises(CommandError) as caught:
            worker.run("bad", {"x": np.zeros(2, np.int64)})
        assert caught.value.facts["stage"] == "run"
        assert worker.run("feeds", FEEDS)["first_seconds"] > 0


def test_a_busy_worker_is_killed(model: Path) -> None:
    start = time.monotonic()
    with Worker(Candidate("o", "bare", str(model)), limit=3) as worker:
        worker.start()
        worker.started()
        worker.open()
        worker.run("feeds", FEEDS)
        with pytest.raises(CommandError, match="it takes longer than 3 s"):
            worker.measure("feeds", 60)
        pid = worker.pid
    assert time.monotonic() - start < 10
    assert not Path(f"/proc/{pid}").exists()


def test_what_a_model_prints_is_no_answer(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "loud.py"
    text = Path(child.__file__).read_text()
    first = "        limit_process(memory)\n"
    assert first in text
    script.write_text(text.replace(first, f"        print('hello')\n{first}"))
    monkeypatch.setattr(child, "__file__", str(script))
    with Worker(Candidate("o", "bare", str(model))) as worker:
        worker.start()
        worker.started()
        assert worker.open()["version"]


def test_a_warm_up_ends_when_runs_get_no_faster() -> None:
    pauses = iter([0.05] * 2 + [0.02] * 2)
    calls = []

    def call() -> None:
        calls.append(1)
        time.sleep(next(pauses, 0.005))

    steady = child.warmed_up(call, most=0.5)
    assert 0.005 <= steady < 0.02
    assert len(calls) < 40


def test_a_client_that_fails_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        child.under_load([lambda: None, lambda: 1 / 0], 0.01, 1)
