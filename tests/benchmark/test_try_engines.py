"""Every engine has its row: right, wrong with the first node that differs, refused with the node, or failed alone."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner

import torchport as tp
from torchport.benchmark import child, feeds, older_runtimes, published, try_engines as module
from torchport.benchmark.children import Candidate, run_candidate
from torchport.benchmark.engine_table import EngineRow, EngineTable, OpsetRow
from torchport.cli.main import cli
from torchport.errors import InputError, OptionError

Cli = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.relu(self.linear(x))
"""


def model_of(body: str, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : {opset}]> g {body}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and the file exported from it as the command line does."""
    place = tmp_path_factory.mktemp("engines")
    (place / "net.py").write_text(SOURCE)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    tp.export(names["Net"](), (torch.randn(2, 4),), output=place / "net.onnx", dynamic={"x": {0: "batch"}})
    return place


def rows_of(table: EngineTable) -> dict[str, EngineRow]:
    return {row.engine: row for row in table.rows}


def test_every_engine_here_is_right_beside_pytorch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(module, "MODES", ("torch",))  # torch.compile needs a compiler and half a minute
    table = tp.try_engines("net.onnx", "net.py:Net", at={"batch": 5}, threads=1, seconds=0.05)
    rows = rows_of(table)
    assert list(rows)[:4] == ["onnxruntime", "openvino", "reference", "torch"]
    assert {name: rows[name].status for name in list(rows)[:4]} == dict.fromkeys(list(rows)[:4], "right")
    assert table.inputs == {"x": (5, 4)}
    assert table.agrees
    for name in list(rows)[:4]:
        row = rows[name]
        assert row.max_abs is not None
        assert row.max_abs < 1e-5
        assert row.version
        assert row.latency_seconds is not None
        assert 0 < row.latency_seconds < 1
        assert row.load_seconds is not None
        assert row.memory is not None
    assert rows["tensorrt"].status == "read, not run"
    assert "TensorRT 10.0" in rows["tensorrt"].reason
    assert "tensorrt" in str(table)
    assert all(len(line) <= 80 for line in str(table).splitlines())
    assert json.loads(json.dumps(table.to_json()))["agrees"] is True


def test_a_wrong_engine_is_named_with_its_first_divergence() -> None:
    body = "(float[n] x) => (float[n] y) <int64 big = {1099511627777}>"
    body += " { [cast] c = Cast<to = 7>(x) [adds] d = Add(c, big) [mods] e = Mod(d, c) y = Cast<to = 1>(e) }"
    table = tp.try_engines(model_of(body), engines=["onnxruntime", "openvino"], inputs=(np.float32([7, 5]),), seconds=0)
    rows = rows_of(table)
    assert rows["onnxruntime"].status == "runs"
    assert table.reference == "onnxruntime"
    assert rows["openvino"].status == "wrong"
    assert rows["openvino"].node == "adds"  # computed as int32
    assert "first divergence: Add 'adds'" in str(table)
    assert not table.agrees


def test_a_wrong_file_is_wrong_in_every_engine(folder: Path) -> None:
    table = tp.try_engines(folder / "net.onnx", lambda x: x[:, :3] * 0 + 7, engines=["onnxruntime"], seconds=0)
    assert [(row.engine, row.status) for row in table.rows] == [("onnxruntime", "wrong")]
    assert table.reference == "PyTorch"


def test_random_outputs_are_called_random_and_the_others_are_compared() -> None:
    body = "(float[n] x) => (float[n] y, float[n] z) { [draw] r = RandomNormalLike(x) y = Add(x, r) z = Neg(x) }"
    given: dict[str, Any] = {"inputs": (np.float32([1, 2]),), "engines": ["onnxruntime", "reference"], "seconds": 0}
    table = tp.try_engines(model_of(body), lambda x: (x + torch.randn(2), -x), **given)
    assert [row.status for row in table.rows] == ["random", "random"]
    assert table.rows[0].max_abs == 0
    assert table.rows[0].reason == (
        "output 'y' cannot be compared: node 'draw' (RandomNormalLike) draws random numbers"
    )
    assert not table.agrees  # what was not compared is not right
    table = tp.try_engines(model_of(body), lambda x: (x + torch.randn(2), x), **given)
    assert [row.status for row in table.rows] == ["wrong", "wrong"]
    assert "output 'z'" in table.rows[0].reason
    assert [row.status for row in tp.try_engines(model_of(body), **given).rows] == ["random", "random"]


def test_weights_beside_the_model_reach_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("(float[n] x) => (float[n] y) <float[1] w = {3}> { y = Mul(x, w) }")
    ir.save(model, tmp_path / "model.onnx", external_data="model.data", size_threshold_bytes=0)
    assert (tmp_path / "model.data").exists()
    monkeypatch.chdir(tmp_path.parent)
    table = tp.try_engines(tmp_path / "model.onnx", inputs=(np.float32([2]),), seconds=0)
    assert {row.engine: row.status for row in table.rows[:3]} == {
        "onnxruntime": "runs",
        "openvino": "right",
        "reference": "right",
    }


def test_texts_are_inputs_and_outputs_too(tmp_path: Path) -> None:
    model = model_of("(string[n] s) => (string[n] t) { i = Identity(s) t = Identity(i) }")
    np.save(tmp_path / "s.npy", np.array(["a", "bcd"]))
    for given in (np.array(["a", "bcd"]), np.array(["a", "bcd"], object)):
        table = tp.try_engines(model, engines=["onnxruntime", "reference"], inputs=(given,), seconds=0)
        assert [row.status for row in table.rows] == ["runs", "right"]
    tp.graph.save(model, tmp_path / "model.onnx")
    done = CliRunner().invoke(
        cli,
        ["engines", f"{tmp_path}/model.onnx", "-i", f"s={tmp_path}/s.npy", "--engines", "onnxruntime,reference", "-q"],
    )
    assert done.exit_code == 0, done.output


def test_onnx_runtime_as_the_outlier_is_named() -> None:
    """FAKE: the outputs of ONNX Runtime's process are replaced, as no fault of it outlives its next release."""
    model = model_of("(float[n] x) => (float[n] y) { [neg] y = Neg(x) }")
    given: dict[str, Any] = {"inputs": (np.float32([1, 2]),), "engines": ["onnxruntime", "openvino", "reference"]}

    def run(candidate: Candidate, feeds: Any, **options: Any) -> Any:
        found = run_candidate(candidate, feeds, **options)
        assert found.outputs is not None
        factor = 2 if candidate.engine == "onnxruntime" else 1
        return dataclasses.replace(found, outputs=(found.outputs[0] * np.float32(factor),))

    patch = pytest.MonkeyPatch()
    patch.setattr(module, "run_candidate", run)
    try:
        table = tp.try_engines(model, lambda x: -x, seconds=0, **given)
        assert [row.status for row in table.rows] == ["wrong", "right", "right"]
        assert "onnxruntime alone differs: openvino and reference agree with PyTorch" in " ".join(str(table).split())
        table = tp.try_engines(model, seconds=0, **given)
        assert [row.status for row in table.rows] == ["runs", "wrong", "wrong"]
        text = " ".join(str(table).split())
        assert "onnxruntime alone differs: openvino and reference agree with each other" in text
        assert "--against" in text
    finally:
        patch.undo()


def test_an_engine_that_refuses_is_named_with_the_node_and_the_line() -> None:
    model = model_of("(float[n] x) => (seq(float[n]) y) { [seq] y = SequenceConstruct(x) }")
    model.graph[0].metadata_props["torchport.source"] = "net.py:12"
    table = tp.try_engines(model, engines=["openvino"], inputs=(np.float32([1]),), seconds=0)
    [row] = table.rows
    assert (row.status, row.node, row.source) == ("refuses", "seq", "net.py:12")
    assert "SequenceConstruct" in row.reason


def test_an_engine_that_runs_out_of_memory_fails_alone(folder: Path) -> None:
    """6 GiB of address space are enough to start it, not for the 8 GiB of this model."""
    body = (
        "(float[n] x) => (float z) <int64[2] s = {2048, 1048576}> { b = Expand(x, s) z = ReduceSum<keepdims = 0>(b) }"
    )
    feeds = {"x": np.zeros(1, np.float32)}
    model = folder / "large.onnx"
    tp.graph.save(model_of(body), model)
    large = Candidate("o", "engine", str(model), engine="onnxruntime")
    outcome = run_candidate(large, feeds, memory=6 << 30, seconds=0)
    assert outcome.outputs is None
    assert outcome.facts["reason"] == "out of memory"
    small = Candidate("o", "engine", str(folder / "net.onnx"), engine="onnxruntime")
    assert run_candidate(small, {"x": np.zeros((1, 4), np.float32)}, seconds=0).outputs is not None


def test_a_process_that_crashes_or_hangs_is_a_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, reason in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it crashed (SIGSEGV)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the system killed it: out of memory"),
        ("import time; time.sleep(60)", "it takes longer than 1 s"),
    ):
        script = folder / "fake_child.py"
        script.write_text(code)
        monkeypatch.setattr(child, "__file__", str(script))
        outcome = run_candidate(Candidate("x", "engine", "m.onnx"), {}, limit=1)
        assert outcome.facts["reason"] == reason


def test_arrays_of_every_dtype_reach_the_child(tmp_path: Path) -> None:
    import ml_dtypes

    arrays = {"a b/c": np.arange(3, dtype=np.int8), "half": np.float32([1.5]).astype(ml_dtypes.bfloat16)}
    child.save_arrays(tmp_path, "feeds", arrays)
    for name, array in child.read_arrays(tmp_path, "feeds").items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": {"bach": 2}}, "did you mean 'batch'?"),
        ({"at": {"batch": -1}}, "dimension 'batch' cannot be -1"),
        ({"threads": 0}, "0 threads cannot run a model"),
        ({"threads": 10**6}, "1000000 threads cannot run a model"),
        ({"runtimes": ["onnxruntime>=1.2"]}, "is no release of ONNX Runtime"),
        ({"options": {"warmth": "1"}}, "has no option 'warmth'"),
        ({"options": {"providers": "cuda"}}, "CUDAExecutionProvider is not in this ONNX Runtime"),
        ({"options": {"device": "GPU"}}, "OpenVINO has no device 'GPU' here"),
        ({"at": {"batch": 2}, "inputs": (np.zeros((1, 4), np.float32),)}, "leave --at or --input out"),
    ],
)
def test_a_mistake_is_named(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        tp.try_engines(folder / "net.onnx", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"q": np.zeros(1)}, "there is no input 'q'"),
        ((np.zeros((1, 4)), np.zeros(1)), "2 inputs given, the model has 1"),
        ({"x": np.zeros((1, 4), np.int64)}, "input 'x' is int64, the model takes float32"),
        ({"x": np.zeros((1, 3), np.float32)}, "the model is fixed to 4"),
    ],
)
def test_inputs_that_do_not_fit_are_named_before_any_engine_is_tried(folder: Path, inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tp.try_engines(folder / "net.onnx", inputs=inputs)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_seconds_that_measure_nothing_are_refused(folder: Path, seconds: float) -> None:
    with pytest.raises(OptionError, match="seconds measure nothing"):
        tp.try_engines(folder / "net.onnx", seconds=seconds)


def test_a_size_that_contradicts_the_model_is_named() -> None:
    with pytest.raises(OptionError, match="no dimension 'batch'") as caught:
        tp.try_engines(model_of("(float[2] x) => (float[2] y) { y = Relu(x) }"), at={"batch": 2})
    assert "every dimension of the model is fixed" in str(caught.value)


def test_an_engine_has_a_row_for_each_provider_that_is_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: a provider that is not here stands for one that is."""
    import onnxruntime as ort

    names = ["CUDAExecutionProvider", "AzureExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: names)
    table = tp.try_engines(folder / "net.onnx", engines=["onnxruntime"], seconds=0)
    assert [(row.engine, row.status) for row in table.rows] == [("onnxruntime", "runs"), ("onnxruntime cuda", "fails")]
    assert "CUDAExecutionProvider is not in this ONNX Runtime" in table.rows[1].reason
    table = tp.try_engines(folder / "net.onnx", engines=["onnxruntime"], options={"spinning": "off"}, seconds=0)
    assert [row.engine for row in table.rows] == ["onnxruntime"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it crashed (SIGSEGV)"),
        ("time.sleep(60)", "it takes longer than 3 s"),
    ],
)
def test_a_model_that_crashes_or_hangs_the_engine_ends_no_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    """FAKE: the process ends or hangs by itself while inputs are made up, and in each row."""
    script = folder / "fake_run.py"
    text = Path(child.__file__).read_text()
    script.write_text(
        text.replace("        self._last = [self._run(", f"        {code}\n        self._last = [self._run(")
    )
    monkeypatch.setattr(child, "__file__", str(script))
    monkeypatch.setattr(feeds, "_PATIENCE", 1.0)
    table = tp.try_engines(folder / "net.onnx", engines=["onnxruntime", "reference"], seconds=0, limit=3)
    assert [row.status for row in table.rows] == ["fails", "fails"]
    assert reason in table.rows[0].reason


# Opsets and older releases


def test_the_widest_opset_is_the_oldest_in_which_most_engines_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUPPORTED", range(8, 12))
    model = model_of("(float[n] x, int64[n] i) => (float[n] y) { y = GatherElements(x, i) }", 13)
    inputs = (np.float32([1, 2]), np.array([1, 0]))
    table = tp.try_engines(model, engines=["onnxruntime", "reference"], inputs=inputs, opsets=True, seconds=0)
    assert {row.opset: bool(row.engines) for row in table.opsets} == {8: False, 9: False, 10: False, 11: True}
    assert "GatherElements" in table.opsets[0].reason
    assert table.widest == 11
    assert "widest: opset 11, right in 2 of 2 engines" in str(table)


def test_the_widest_choice_counts_engines() -> None:
    rows = [
        OpsetRow(13, {"a": "right", "b": "refuses"}),
        OpsetRow(15, {"a": "right", "b": "right"}),
        OpsetRow(17, {"a": "right", "b": "right"}),
    ]
    assert EngineTable("m", "a", {}, (), tuple(rows)).widest == 15


def test_an_older_release_runs_in_an_environment_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: this environment's Python stands for one with an older release, so that nothing is downloaded."""
    monkeypatch.setattr(module, "environment_of", lambda runtime: Path(sys.executable))
    table = tp.try_engines(
        folder / "net.onnx", engines=["reference"], runtimes=["onnxruntime==1.21.0"], at={"batch": 3}, seconds=0
    )
    assert [(row.engine, row.status) for row in table.rows] == [
        ("reference", "runs"),
        ("onnxruntime==1.21.0", "right"),
    ]


def test_a_release_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: pip is replaced."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        calls.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("TORCHPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(older_runtimes.subprocess, "run", run)
    first = older_runtimes.environment_of("onnxruntime==1.21.0")
    assert older_runtimes.environment_of("onnxruntime==1.21.0") == first
    assert len(calls) == 2
    assert calls[1][-3:] == ["onnxruntime==1.21.0", "numpy", "ml_dtypes"]
    older_runtimes.environment_of("onnxruntime==1.17.0")
    assert "numpy<2" in calls[3]


def test_a_release_that_pip_does_not_find_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: pip is replaced."""
    fails = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for onnxruntime==0.0.1\n")
    monkeypatch.setenv("TORCHPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(older_runtimes.subprocess, "run", lambda command, **_: fails)
    with pytest.raises(OptionError, match="No matching distribution"):
        older_runtimes.environment_of("onnxruntime==0.0.1")


# Published lists


@pytest.mark.parametrize(
    ("body", "opset", "reason"),
    [
        ("(float[n] x) => (float[n] y) { y = Relu(x) }", 17, ""),
        ("(float[n] x) => (float[n] y) { y = Relu(x) }", 21, "the list has opsets 9 to 20, the model has 21"),
        ("(float[n] x) => (float[m] y) { [u] y = Unique(x) }", 17, "Unique is not in the list"),
    ],
)
def test_a_published_list_says_what_an_engine_lacks(body: str, opset: int, reason: str) -> None:
    assert published.first_lack(model_of(body, opset), "tensorrt")[0] == reason


def test_every_operator_of_a_list_is_one_of_onnx() -> None:
    from onnx import defs

    known = {schema.name for schema in defs.get_all_schemas_with_history()}
    for listed in published.lists().values():
        assert set(listed["lacks"]) <= known


# The command line


def test_the_command_line_prints_the_table_and_exits_1_if_an_engine_is_not_right(folder: Path, torchport: Cli) -> None:
    done = torchport("engines", "net.onnx", "--engines", "onnxruntime", "--seconds", 0.05, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["status"] == "runs"
    tp.graph.save(
        model_of("(float[n] x) => (float[n] y) { [opt] o = Optional(x) y = OptionalGetElement(o) }"),
        folder / "opt.onnx",
    )
    done = torchport("engines", "opt.onnx", "-i", "x=float32[3]", "--seconds", 0.05, "-q", cwd=folder)
    assert done.returncode == 1
    assert "node 'opt'" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--engines warp", "there is no engine 'warp' here"),
        ("--at batch", "'batch' is not DIMENSION=SIZE"),
        ("--at batch=2,batch=3", "'batch' has two sizes: 2 and 3"),
        ("--threads 0", "0 threads cannot run a model"),
    ],
)
def test_a_mistake_on_the_command_line_exits_2(folder: Path, torchport: Cli, words: str, message: str) -> None:
    done = torchport("engines", "net.onnx", *words.split(), cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_ends_the_children_and_prints_the_table_so_far(folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("torchport")), "engines", "net.onnx", "--seconds", "60"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stderr is not None
    while "trying onnxruntime" not in process.stderr.readline():
        pass
    time.sleep(2)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    pids = [int(word) for word in children.stdout.split()]
    assert pids
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted: this is the table so far" in out
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
