"""A profile says where the time goes: kernels, the nodes in them, modules, lines, limits, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import torchport as tp
from torchport.benchmark import child, machine_limits as limits_module, profiling as module, thread_scaling
from torchport.benchmark.children import Candidate
from torchport.benchmark.kernel_costs import sizes_in
from torchport.benchmark.profile_report import Limits, LineTime, Profile
from torchport.engines.options import open_options
from torchport.errors import EngineError, EngineMissingError, InputError, OptionError, SaveError
from torchport.machine import cpu_name

Cli = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        y = y + x
        return torch.relu(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        return self.head(x)
"""
FIXED = Limits("a CPU", None, "an engine 1.0", {"float32": 1e12, "int8": 4e12}, {1 << 20: 2e12, 128 << 20: 1e12})
QUICK: dict[str, Any] = {"seconds": 0.1, "compare_threads": False}


def line_of(text: str) -> str:
    return f"net.py:{1 + next(n for n, line in enumerate(SOURCE.splitlines()) if text in line)}"


def model_of(body: str, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : {opset}]> g {body}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("profile")
    (place / "net.py").write_text(SOURCE)
    names: dict[str, Any] = {}
    exec(compile(SOURCE, str(place / "net.py"), "exec"), names)
    torch.manual_seed(0)
    tp.export(
        names["Net"]().eval(), (torch.randn(2, 3, 32, 32),), output=place / "net.onnx", dynamic={"x": {0: "batch"}}
    )
    return place


@pytest.fixture(autouse=True)
def _fixed_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of one machine, so that tests measure nothing but their model."""
    monkeypatch.setattr(module, "machine_limits", lambda *given, **named: FIXED)


@pytest.fixture(scope="module")
def found(folder: Path) -> Profile:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "machine_limits", lambda *given, **named: FIXED)
        return tp.profile(folder / "net.onnx", at={"batch": 4}, trace=folder / "trace.json", **QUICK)


def test_the_time_adds_up_to_the_run(found: Profile) -> None:
    assert found.inputs == {"x": (4, 3, 32, 32)}
    assert found.runs >= 3
    assert sum(node.seconds for node in found.nodes) == pytest.approx(found.kernel_seconds)
    assert found.modules[0].seconds == pytest.approx(found.kernel_seconds)
    assert sum(o.seconds for o in found.operators) == pytest.approx(found.kernel_seconds)
    assert found.between_seconds == pytest.approx(max(found.run_seconds - found.kernel_seconds, 0.0))
    assert found.profiled_seconds > 0


def test_a_fused_kernel_names_its_nodes_and_divides_its_time_among_their_lines(found: Profile) -> None:
    fused = [node for node in found.nodes if node.operators == ("Conv", "Add", "Relu")]
    assert len(fused) == 2
    assert {node.module for node in fused} == {"blocks.0.conv", "blocks.1.conv"}
    assert all(node.source.endswith(line_of("y = self.conv(x)")) for node in fused)
    lines = [tuple(s.rpartition("/")[2] for s in node.sources) for node in fused]
    assert set(lines) == {(line_of("y = self.conv(x)"), line_of("y = y + x"), line_of("return torch.relu(y)"))}
    by_line = {line.source.rpartition("/")[2]: line for line in found.lines}
    assert by_line[line_of("y = self.conv(x)")].seconds > 5 * by_line[line_of("y = y + x")].seconds > 0


def test_modules_have_all_that_is_inside_them(found: Profile) -> None:
    modules = {m.module: m for m in found.modules}
    assert modules["blocks"].seconds == pytest.approx(modules["blocks.0"].seconds + modules["blocks.1"].seconds)
    assert modules["blocks"].own_seconds == 0
    assert modules["blocks.0"].own_seconds < modules["blocks.0"].seconds


def test_multiply_adds_and_bytes_are_those_of_the_run(found: Profile) -> None:
    modules = {m.module: m for m in found.modules}
    conv = modules["blocks.0.conv"]
    assert conv.multiply_adds == 4 * 16 * 32 * 32 * 16 * 9
    head = modules["head"]
    assert head.multiply_adds == 4 * 16 * 5
    [kernel] = [node for node in found.nodes if "Gemm" in node.operators]
    assert kernel.bytes_moved == 4 * (4 * 16 + 16 * 5 + 5 + 4 * 5)
    seconds = conv.multiply_adds / FIXED.multiply_adds["float32"]
    assert conv.arithmetic == pytest.approx(seconds / conv.seconds)


def test_an_inserted_kernel_stands_with_the_node_beside_it(found: Profile) -> None:
    for node in found.nodes:
        assert node.inserted == (not node.nodes)
        if node.inserted:
            assert node.source


def test_the_text_fits_a_terminal_and_names_line_and_limit(found: Profile) -> None:
    for text in (str(found), found.text(top=3, tree=True)):
        assert all(len(line) <= 80 for line in text.splitlines())
        assert "the engine's own time between them" in text.replace("\n   ", "")
    assert line_of("y = self.conv(x)") in str(found)
    assert "Conv + Add + Relu" in str(found)
    assert "(between nodes)" in found.text(tree=True)


def test_the_sentence_about_a_module_names_time_and_limits() -> None:
    line = LineTime(source="a.py:1", seconds=1.0, share=0.18, arithmetic=0.31, memory=0.62)
    assert line.sentence == "18% of the time, 31% of the arithmetic limit, 62% of the memory limit, memory-bound"
    assert dataclasses.replace(line, memory=0.2).bound == "arithmetic"
    assert dataclasses.replace(line, arithmetic=0.01, memory=None).bound == "neither"
    assert dataclasses.replace(line, arithmetic=None, memory=None).bound == "unknown"


def test_the_trace_has_module_and_line(found: Profile, folder: Path) -> None:
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert len(calls) == len(found.nodes)
    convs = [c["args"] for c in calls if c["args"]["module"] == "blocks.0.conv"]
    assert convs[0]["line"].endswith(line_of("y = self.conv(x)"))
    assert all(call["dur"] >= 0 and call["ts"] >= 0 for call in calls)


def test_the_json_form_is_the_record(found: Profile) -> None:
    form = json.loads(json.dumps(found.to_json()))
    assert form["schema"] == 1
    assert form["nodes"][0]["bound"] in ("arithmetic", "memory", "neither")
    assert form["accounted"] == pytest.approx(found.accounted)
    assert form["limits"]["multiply_adds"]["float32"] == 1e12


def test_openvino_names_what_it_fused(folder: Path) -> None:
    found = tp.profile(folder / "net.onnx", engine="openvino", at={"batch": 2}, **QUICK)
    assert {("Conv", "Relu"), ("Add", "Relu")} <= {node.operators for node in found.nodes}
    assert sum(node.seconds for node in found.nodes) > 0
    assert {m.module for m in found.modules} >= {"blocks.0.conv", "head"}


def test_a_normalization_folded_into_a_convolution_has_both_lines(tmp_path: Path, monkeypatch: Any) -> None:
    source = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return torch.relu(self.norm(y))
"""
    (tmp_path / "folded.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(source, str(tmp_path / "folded.py"), "exec"), names)
    tp.export(names["Net"](), (torch.randn(1, 8, 32, 32),), output="folded.onnx")
    found = tp.profile("folded.onnx", **QUICK)
    [conv] = [node for node in found.nodes if "Conv" in node.operators]
    assert conv.source == "folded.py:13"
    assert conv.module == "conv"
    assert set(conv.sources) == {"folded.py:13", "folded.py:14"}
    assert conv.computes == ("Conv", "BatchNormalization", "Relu")
    assert "Conv + BatchNormalization + Relu" in str(found)
    assert "conv" in {m.module for m in found.modules}


def test_a_product_between_reshapes_of_the_engine_keeps_its_multiply_adds() -> None:
    weights = "float[64,1] w = {" + ", ".join(["1"] * 64) + "}, float[1] b = {1}"
    body = f"(float[2,16,64] x) => (float[2,16,1] y) <{weights}>"
    model = model_of(body + " { [mm] m = MatMul(x, w) [add] y = Add(m, b) }")
    found = tp.profile(model, **QUICK)
    by_operator = {node.operator: node for node in found.nodes}
    assert by_operator["Gemm"].operators == ("MatMul", "Add")
    assert by_operator["Gemm"].multiply_adds == 2 * 16 * 64
    assert all(node.inserted for node in found.nodes if node.operator == "Reshape")


def test_an_lstm_keeps_its_multiply_adds_in_openvino() -> None:
    """OpenVINO gives the node's name to a transpose behind the sequence, or to none of its steps."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(16, 32, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0][:, -1]

    model = tp.export(Net(), (torch.randn(2, 5, 16),)).model
    found = tp.profile(model, engine="openvino", **QUICK)
    [lstm] = [node for node in found.nodes if "LSTM" in node.operators]
    assert lstm.operator == "RNNSeq"
    assert lstm.multiply_adds == 2 * 5 * 4 * 32 * (16 + 32)


def test_no_kernel_is_beyond_a_limit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE: the limits are a hundredth of what the machine can do; what the model reaches raises them."""
    low = Limits("a CPU", None, "an engine", {"float32": 1e8}, {1 << 18: 1e8, 128 << 20: 1e8})
    monkeypatch.setenv("TORCHPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "machine_limits", lambda *given, **named: low)
    found = tp.profile(folder / "net.onnx", at={"batch": 4}, **QUICK)
    tables = (*found.nodes, *found.modules, *found.lines, *found.operators)
    reached = [part for node in tables for part in (node.arithmetic, node.memory) if part is not None]
    assert reached
    assert max(reached) <= 1.001
    assert found.limits is not None
    assert found.limits.multiply_adds["float32"] > 1e8


# Loops, branches, functions, operators of the user's own


def test_nodes_in_branches_and_loops_have_their_own_time() -> None:
    body = """(float[n,64] x, bool c, int64 k) => (float[n,64] y) {
        [first] a = Relu(x)
        [choice] b = If(c) <then_branch = t () => (float[n,64] r) { [inner] r0 = Neg(a) r = Exp(r0) },
                            else_branch = e () => (float[n,64] q) { [never] q = Abs(a) }>
        cond = Constant<value = bool {1}>()
        [turn] y = Loop(k, cond, b) <body = body (int64 i, bool ci, float[n,64] v) => (bool co, float[n,64] w) {
            co = Identity(ci) [inloop] w = Sin(v) }>
    }"""
    feeds = {"x": np.ones((100, 64), np.float32), "c": np.array(True), "k": np.array(3)}
    found = tp.profile(model_of(body), inputs=feeds, **QUICK)
    nodes = {node.name: node for node in found.nodes}
    assert set(nodes) == {"first", "choice", "inner", "r", "turn", "inloop", "co"}
    assert nodes["inloop"].calls == 3
    assert (nodes["inloop"].inside, nodes["inner"].inside, nodes["first"].inside) == ("turn", "choice", "")


def test_local_functions_are_profiled_inside() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[n] x) => (float[n] z) { y = my.Foo(x) z = Neg(y) }
    <opset_import: ["" : 17], domain: "my"> Foo (a) => (b) { c = Relu(a) b = Exp(c) }"""
    found = tp.profile(ir.from_onnx_text(text), **QUICK)
    assert {node.operator for node in found.nodes} == {"Relu", "Exp", "Neg"}


def test_an_operator_that_pytorch_runs_is_shown_as_such(tmp_path: Path) -> None:
    @tp.operator("profiled::shifted")
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    shifted.onnx("profiled::Shifted")
    exported = tp.export(lambda x: shifted(x.cos()), (torch.randn(3, 4),), output=tmp_path / "own.onnx")
    assert exported.proven
    found = tp.profile(tmp_path / "own.onnx", **QUICK)
    assert [node.operators for node in found.nodes if node.in_python] == [("Shifted",)]
    assert any("PyTorch runs profiled::Shifted" in finding.message for finding in found.findings)
    assert "in Python" in str(found)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_graph_without_nodes_has_a_profile_without_kernels(engine: str) -> None:
    found = tp.profile(model_of("(float[n] x) => (float[n] x) { }"), engine=engine, **QUICK)
    assert found.nodes == ()
    assert found.between_seconds == found.run_seconds
    assert "runs no kernel" in str(found)


def test_nodes_without_names_are_told_apart() -> None:
    body = "(float[n] x) => (float[n] z) { a = Sin(x) b = Cos(a) c = Sin(b) z = Add(a, c) }"
    found = tp.profile(model_of(body), at={"n": 5000}, **QUICK)
    assert {node.nodes for node in found.nodes} == {("a",), ("b",), ("c",), ("z",)}


def test_sizes_of_dimensions_come_from_the_inputs_also_where_only_a_multiple_is_stated() -> None:
    model = model_of("(float[n, m] x) => (float[n, m] y) { y = Relu(x) }")
    assert sizes_in(model, {"x": np.ones((3, 5))}) == {"n": 3, "m": 5}
    model.graph.inputs[0].shape = ir.Shape(["n", "2*n + 1"])
    assert sizes_in(model, {"x": np.ones((3, 7))}) == {"n": 3}


# Mistakes


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"engine": "reference"}, OptionError, "does not count the time of its nodes"),
        ({"engine": "warp"}, EngineMissingError, "there is no engine 'warp' here"),
        ({"engine": "tensorrt"}, EngineMissingError, "not installed"),
        ({"options": {"providers": ["cuda"]}}, OptionError, "CUDAExecutionProvider is not in this"),
        ({"options": {"profile": "x"}}, OptionError, "is what torchport reads here"),
        ({"threads": 0}, OptionError, "0 threads cannot run a model"),
        ({"threads": 10**6}, OptionError, "1000000 threads cannot run a model"),
        ({"at": {"bach": 3}}, OptionError, "the model has no dimension 'bach'"),
        ({"at": {"batch": 3}, "inputs": (np.ones((1, 3, 32, 32), np.float32),)}, OptionError, "inputs are given"),
        ({"inputs": (np.ones((1, 3, 32, 32), np.int64),)}, InputError, "input 'x' is int64, the model takes float32"),
        ({"inputs": (1, 2)}, InputError, "2 inputs given, the model has 1"),
        ({"inputs": {"y": np.ones(1, np.float32)}}, InputError, "there is no input 'y'"),
        ({"trace": "/nowhere/trace.json"}, SaveError, "cannot be used"),
        ({"libraries": ["none.so"]}, OptionError, "there is no operator library"),
    ],
)
def test_a_mistake_is_said_before_anything_is_measured(
    folder: Path,
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(Path(tempfile.gettempdir()).glob("torchport-*"))
    with pytest.raises(kind, match=message):
        tp.profile(folder / "net.onnx", **options, **QUICK)
    assert not [
        p for p in set(Path(tempfile.gettempdir()).glob("torchport-*")) - before if (p / "optimized.onnx").exists()
    ]
    assert not list(tmp_path.iterdir())  # ONNX Runtime writes its profile there if it is asked for one


def test_a_custom_operator_without_a_library_is_named() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[n] x) => (float[n] z) { z = my.Foo(x) }'
    with pytest.raises(EngineError, match="nothing here runs the operator my::Foo"):
        tp.profile(ir.from_onnx_text(text), **QUICK)


# Limits


def test_limits_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPORT_CACHE", str(tmp_path))
    monkeypatch.setattr(limits_module, "_TIMES", 1)
    monkeypatch.setattr(limits_module, "_SIZES", (1 << 20, 8 << 20))
    said: list[str] = []
    options = open_options("onnxruntime", threads=1)
    first = limits_module.machine_limits("onnxruntime", options, said.append)
    assert first.multiply_adds["float32"] > 1e8
    assert first.multiply_adds["int8"] > 1e8
    assert set(first.bandwidth) == {1 << 20, 8 << 20}
    assert all(rate > 1e7 for rate in first.bandwidth.values())
    assert first.cpu == cpu_name()
    assert limits_module.machine_limits("onnxruntime", options, said.append) == first
    assert len(said) == 1
    [file] = (tmp_path / "limits").iterdir()
    file.write_text('{"multiply_adds": 7}')  # what somebody else wrote is measured again
    limits_module.machine_limits("onnxruntime", options, said.append)
    assert len(said) == 2
    again = limits_module.machine_limits("onnxruntime", options, said.append, again=True)
    kept = json.loads(file.read_text())
    assert kept["multiply_adds"]["float32"] == again.multiply_adds["float32"]


def test_limits_that_cannot_be_measured_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **named: Any) -> Limits:
        raise EngineError("no kernel")

    monkeypatch.setattr(module, "machine_limits", fails)
    found = tp.profile(folder / "net.onnx", **QUICK)
    assert found.limits is None
    assert found.nodes[0].bound == "unknown"
    assert "could not be measured: no kernel" in str(found).replace("\n    ", " ")


def test_threads_are_compared_in_processes_of_their_own(folder: Path) -> None:
    feeds = {"x": np.ones((1, 3, 32, 32), np.float32)}
    candidate = Candidate("onnxruntime", "engine", str(folder / "net.onnx"), "onnxruntime")
    times = thread_scaling.times_by_threads(candidate, feeds, 0.001, str)
    assert set(times) == {1, None}
    assert all(len(found) == 2 and min(found) > 0 for found in times.values())
    assert thread_scaling.times_by_threads(candidate, feeds, 99.0, str) == {}


@pytest.mark.parametrize("given", [None, (np.ones((1, 3, 32, 32), np.float32),)])
def test_a_model_that_crashes_the_engine_ends_a_process_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    """FAKE: the process that tries the inputs ends itself."""
    line = "        self._last = [self._run("
    script = folder / "fake_child.py"
    crash = "        os.kill(os.getpid(), signal.SIGSEGV)\n"
    script.write_text(Path(child.__file__).read_text().replace(line, crash + line))
    monkeypatch.setattr(child, "__file__", str(script))
    with pytest.raises(EngineError, match=r"onnxruntime cannot run the model: it crashed \(SIGSEGV\)"):
        tp.profile(folder / "net.onnx", **{**QUICK, "inputs": given})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_seconds_that_measure_nothing_are_refused(folder: Path, seconds: float) -> None:
    with pytest.raises(OptionError, match="seconds measure nothing"):
        tp.profile(folder / "net.onnx", **{**QUICK, "seconds": seconds})


# The command line


def test_the_command_line_tells_the_story(folder: Path, torchport: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user looks where the time goes, as a tree, and keeps a trace; the machine's limits are in the cache."""
    monkeypatch.setenv("TORCHPORT_CACHE", str(folder / "cache"))
    monkeypatch.setattr(limits_module, "_TIMES", 1)
    monkeypatch.setattr(limits_module, "_SIZES", (1 << 20,))
    limits_module.machine_limits("onnxruntime", open_options("onnxruntime", threads=1), str)
    words = ("profile", "net.onnx", "--at", "batch=2", "--seconds", 0.1, "--threads", 1, "--quiet")
    done = torchport(*words, "--tree", "--trace", "t.json", "--top", 3, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "blocks" in done.stdout
    assert "MiB on 1 MiB" in done.stdout.replace("GiB", "MiB")
    assert line_of("y = self.conv(x)") in done.stdout
    assert "saved to t.json" in done.stdout
    assert (folder / "t.json").exists()


def test_an_error_is_json_where_json_is_asked_for(folder: Path, torchport: Cli) -> None:
    done = torchport("profile", "net.onnx", "--threads", 10**6, "--json", cwd=folder)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "OptionError"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--engine reference", "does not count the time of its nodes"),
        ("--at batch=x", "'batch=x' is not DIMENSION=SIZE"),
        ("--at rows=3", "the model has no dimension 'rows'"),
    ],
)
def test_a_mistake_on_the_command_line_exits_2(folder: Path, torchport: Cli, words: str, message: str) -> None:
    done = torchport("profile", "net.onnx", *words.split(), "-q", cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_an_interrupt_leaves_no_files_and_no_processes(folder: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("torchport")), "profile", "net.onnx", "--seconds", "60"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "TORCHPORT_CACHE": str(folder / "cache")},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert any("measuring" in line for line in iter(process.stderr.readline, ""))
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert [p for p in tmp_path.iterdir() if p.name != ".ses"] == []  # ONNX Runtime's own


def test_help_names_the_options(torchport: Cli) -> None:
    done = torchport("profile", "--help")
    assert all(word in done.stdout for word in ("--engine", "--at", "--top", "--tree", "--trace", "--library"))
