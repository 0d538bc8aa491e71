"""tp.bench and torchport bench: models and engines beside each other, the wrong ones called wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import torchport as tp
from torchport.benchmark import benchmarking, rounds
from torchport.benchmark.bench_table import BenchRow, BenchTable, SpeedVerdict
from torchport.cli.bench import sizes
from torchport.cli.main import cli
from torchport.errors import OptionError, SaveError, TorchportError
from torchport.results import Finding

RELU = "(float[batch,4] x) => (float[batch,4] y) { y = Relu(x) }"
RELU_TWICE = "(float[batch,4] x) => (float[batch,4] y) { h = Relu(x) y = Relu(h) }"
LEAKY = "(float[batch,4] x) => (float[batch,4] y) { y = LeakyRelu<alpha = 0.5>(x) }"
LARGE = """(float[batch,4] x) => (float[batch,4] y) <int64[3] s = {2048, 1048576, 1}>
    { f = Flatten<axis = 0>(x) m = ReduceMax<keepdims = 1>(f) b = Expand(m, s) z = ReduceMax<keepdims = 0>(b)
      e = Min(z, m) w = Mul(x, e) y = Relu(w) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bench")
    bodies = {"relu": RELU, "twice": RELU_TWICE, "leaky": LEAKY, "large": LARGE}
    bodies["other"] = RELU.replace("x)", "z)").replace("] x", "] z")
    bodies["pair"] = "(float[batch,4] x) => (float[batch,4] y, float[batch,4] z) { y = Relu(x) z = Neg(x) }"
    for name, body in bodies.items():
        tp.graph.save(ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17]> g {body}'), place / f"{name}.onnx")
    return place


@pytest.fixture(scope="module")
def measured(folder: Path) -> BenchTable:
    """Two models at two sizes with one and two clients, held against PyTorch."""
    patch = pytest.MonkeyPatch()
    patch.setattr(rounds, "_MORE", 1)
    try:
        return tp.bench(
            [folder / "relu.onnx", folder / "leaky.onnx"],
            lambda x: x.relu(),
            at={"batch": [1, 3]},
            threads=1,
            clients=[1, 2],
            seconds=0.2,
            processes=3,
        )
    finally:
        patch.undo()


def test_there_is_a_row_for_each_candidate_at_each_point(measured: BenchTable) -> None:
    found = [(row.candidate, row.at["batch"], row.clients) for row in measured.rows]
    names = ("relu.onnx", "leaky.onnx")
    assert found == [(name, size, clients) for size in (1, 3) for clients in (1, 2) for name in names]
    assert measured.inputs == ({"x": (1, 4)}, {"x": (3, 4)})
    assert measured.reference == "PyTorch"


def test_a_fast_wrong_model_is_called_wrong(measured: BenchTable) -> None:
    for row in measured.rows:
        assert row.status == ("wrong" if row.candidate == "leaky.onnx" else "right")
    assert not measured.agrees
    assert "output 'y'" in next(row.reason for row in measured.rows if row.status == "wrong")


def test_the_figures_of_a_row_fit_together(measured: BenchTable) -> None:
    for row in measured.rows:
        assert row.processes == 3
        assert row.runs >= 3 * 3 * row.clients
        assert row.median_seconds is not None
        assert row.p90_seconds is not None
        assert row.p99_seconds is not None
        assert 0 < row.median_seconds <= row.p90_seconds <= row.p99_seconds < 1
        assert row.throughput is not None
        assert row.throughput * row.median_seconds < 2 * row.clients
        assert row.spread is not None
        assert row.spread >= 0
        assert row.load_seconds
        assert row.first_seconds
        assert row.memory is not None
        assert row.version


def test_every_pair_has_a_verdict_at_every_point(measured: BenchTable) -> None:
    assert len(measured.verdicts) == 4
    for verdict in measured.verdicts:
        assert verdict.low <= verdict.ratio <= verdict.high


def test_the_text_fits_the_terminal_and_the_json_is_whole(measured: BenchTable) -> None:
    assert all(len(line) <= 80 for line in str(measured).splitlines())
    assert "batch=3, 2 clients" in str(measured)
    found = json.loads(json.dumps(measured.to_json(), allow_nan=False))
    assert len(found["rows"]) == 8
    assert found["agrees"] is False
    assert found["verdicts"][0]["first"] == "relu.onnx"


def test_the_plot_is_a_picture_of_every_row(measured: BenchTable, tmp_path: Path) -> None:
    measured.plot(tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert sum(text.startswith("leaky.onnx, batch=3") for text in texts) == 4  # two clients, two panels
    assert sum(element.tag.endswith("rect") for element in root.iter()) == 1 + 2 * 8
    assert os.listdir(tmp_path) == ["plot.svg"]


def test_a_candidate_that_runs_out_of_memory_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 GiB of address space are enough to start, not for the 8 GiB of one model."""
    monkeypatch.setattr(rounds, "_MORE", 1)
    models = [folder / "relu.onnx", folder / "large.onnx"]
    table = tp.bench(models, at={"batch": 1}, threads=1, seconds=0.1, processes=3, memory=6 << 30)
    relu, large = table.rows
    assert (relu.status, relu.processes) == ("runs", 3)
    assert (large.status, large.reason) == ("fails", "out of memory")
    assert table.verdicts == ()
    assert not table.agrees
    assert "large.onnx: out of memory" in str(table)


# Verdicts and candidates


def row(**changes: Any) -> BenchRow:
    plain = BenchRow("a.onnx", "a.onnx", "onnxruntime", None, {}, 1, "right", median_seconds=1e-3, throughput=1e3)
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ((1.31, 1.27, 1.35, True), "b is 1.31 times as fast as a (95%: 1.27 to 1.35)"),
        ((1 / 1.25, 1 / 1.5, 1 / 1.1, True), "a is 1.25 times as fast as b (95%: 1.10 to 1.50)"),
        ((1.001, 0.99, 1.02, False), "a and b: no difference beyond the noise (95%: 0.99 to 1.02)"),
    ],
)
def test_a_verdict_names_the_faster_one_first(figures: tuple[float, float, float, bool], text: str) -> None:
    assert str(SpeedVerdict("a", "b", {}, 1, *figures)) == text


def test_a_table_with_long_names_and_findings_fits_the_terminal() -> None:
    name = "a/very/long/path/" * 6 + "model.onnx"
    rows = (row(candidate=name, status="fails", reason="it crashed", next_step="try " * 40), row(candidate="b"))
    table = BenchTable((name,), "", ({"x": (1, 2)},), rows, (), (Finding("the machine " * 20),), interrupted=True)
    assert all(len(line) <= 80 or name in line for line in str(table).splitlines())
    assert str(table).endswith("interrupted: this is the table so far")
    assert not table.agrees


def candidates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the candidates of a call and the pairs that are compared; nothing is measured."""
    seen: list[Any] = []

    class Nothing(rounds.Rounds):
        def run(self) -> None:
            seen.append((self._candidates, [(a.label, b.label) for a, b in self._pairs]))

    monkeypatch.setattr(benchmarking, "Rounds", Nothing)
    table = tp.bench(**options)
    assert {r.status for r in table.rows} == {"not measured"}
    return seen[0]  # type: ignore[no-any-return]


def test_pairs_differ_in_one_thing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [folder / "relu.onnx", folder / "twice.onnx"]
    found, pairs = candidates(folder, monkeypatch, models=models, threads=[1, 2], at={"batch": 1})
    assert [c.label for c in found] == [f"{name}.onnx threads={n}" for name in ("relu", "twice") for n in (1, 2)]
    assert ("relu.onnx threads=1", "twice.onnx threads=1") in pairs
    assert ("relu.onnx threads=1", "relu.onnx threads=2") in pairs
    assert ("relu.onnx threads=1", "twice.onnx threads=2") not in pairs
    assert len(pairs) == 4


def test_the_same_file_twice_is_two_candidates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, pairs = candidates(folder, monkeypatch, models=[folder / "relu.onnx"] * 2)
    assert [c.label for c in found] == ["relu.onnx", "relu.onnx (2)"]
    assert len(pairs) == 1


def test_pytorch_is_a_candidate_where_its_source_is_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "net.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x.relu()\n"
    )
    source = f"{folder / 'net.py'}:Net"
    found, _ = candidates(folder, monkeypatch, models=folder / "relu.onnx", against=source)
    assert [(c.label, c.kind) for c in found] == [
        ("onnxruntime", "engine"),
        ("torch", "torch"),
        ("torch.compile", "torch"),
    ]
    found, _ = candidates(folder, monkeypatch, models=folder / "relu.onnx", against=source, engines=["torch"])
    assert [c.label for c in found] == ["relu.onnx"]


def test_an_option_goes_to_the_engines_that_have_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"graph_optimization": "basic", "hint": "latency"}
    engines = ["onnxruntime", "openvino", "reference"]
    found, _ = candidates(folder, monkeypatch, models=folder / "relu.onnx", engines=engines, options=options, threads=1)
    assert [dict(c.settings) for c in found] == [{"graph_optimization": "basic"}, {"hint": "latency"}, {}]
    assert [c.threads for c in found] == [1, 1, None]  # the reference has no threads


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": {"bach": 2}}, "did you mean 'batch'?"),
        ({"at": {"batch": [1, -1]}}, "dimension 'batch' cannot be -1"),
        ({"at": {"batch": []}}, "dimension 'batch' has no size"),
        ({"threads": [1, 0]}, "0 threads cannot run a model"),
        ({"threads": 10**6}, "1000000 threads cannot run a model"),
        ({"clients": 0}, "0 clients cannot call a model"),
        ({"clients": [1, 10**6]}, "1000000 clients cannot call a model"),
        ({"processes": 1}, "1 processes for each candidate tell no interval"),
        ({"seconds": 0}, "0 seconds measure nothing"),
        ({"seconds": float("nan")}, "nan seconds measure nothing"),
        ({"engines": ["warp"]}, "there is no engine 'warp' here"),
        ({"engines": []}, "no engine is named"),
        ({"engines": ["torch"]}, "there is no PyTorch model that 'torch' could run"),
        ({"options": {"warp": 9}}, "has no option 'warp'"),
        ({"options": {"graph_optimization": "most"}}, "is one of disabled"),
        ({"at": {"batch": 2}, "inputs": (np.zeros((1, 4), np.float32),)}, "leave --at or --input out"),
        ({"inputs": (np.zeros((1, 4), np.int64),)}, "int64"),
        ({"inputs": (np.zeros((1, 5), np.float32),)}, "5"),
        ({"inputs": {"q": np.zeros(1)}}, "there is no input 'q'"),
        ({"libraries": ["nothing.so"]}, "nothing.so"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TorchportError) as caught:
        tp.bench(folder / "relu.onnx", **options)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("other", "message"), [("other", "take different inputs"), ("pair", "gives 2 outputs"), ("none", "none.onnx")]
)
def test_models_that_cannot_be_compared_are_named(folder: Path, other: str, message: str) -> None:
    with pytest.raises(TorchportError, match=message):
        tp.bench([folder / "relu.onnx", folder / f"{other}.onnx"])


def test_no_model_is_a_mistake() -> None:
    with pytest.raises(OptionError, match="there is no model to measure"):
        tp.bench([])


def test_a_plot_that_cannot_be_written_is_named_first(folder: Path, tmp_path: Path) -> None:
    table = BenchTable(("a.onnx",), "", ({},), (row(),))
    with pytest.raises(OptionError, match="a plot is an"):
        table.plot(tmp_path / "plot.png")
    with pytest.raises(SaveError, match="nowhere"):
        table.plot(tmp_path / "nowhere" / "plot.svg")


def test_another_order_of_outputs_is_no_difference(folder: Path) -> None:
    text = "(float[batch,4] x) => (float[batch,4] z, float[batch,4] y) { y = Relu(x) z = Neg(x) }"
    swapped = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    models = benchmarking.labelled(
        [benchmarking.BenchModel("a", "a", "a", onnx_model(folder)), benchmarking.BenchModel("b", "b", "b", swapped)]
    )
    bench = benchmarking._Bench(models, [], rounds.Plan(), benchmarking.Asked(None, (), None, {}, NO_LIBRARIES), print)
    given = (np.float32([1]), np.float32([2]))
    assert bench._ordered(bench._candidates[1], given) == (given[1], given[0])
    assert bench._ordered(bench._candidates[0], given) == given


NO_LIBRARIES = benchmarking.Common()


def onnx_model(folder: Path) -> ir.Model:
    return ir.load(folder / "pair.onnx")


# The command line


def test_sizes_are_read_as_lists() -> None:
    read: Any = sizes
    assert read(None, None, ("batch=1,8,height=64", "width=2")) == {"batch": [1, 8], "height": [64], "width": [2]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--engines warp", "there is no engine 'warp' here"),
        ("--at batch", "'batch' is not DIMENSION=SIZE"),
        ("--at 1,8", "'1' is not DIMENSION=SIZE"),
        ("--at bach=1,8", "no dimension 'bach'"),
        ("--threads 0", "0 threads cannot run a model"),
        ("--threads one", "'one' is no number"),
        ("--clients 0", "0 clients cannot call a model"),
        ("--plot plot.png", "a plot is an .svg file"),
        ("--plot /proc/plot.svg", "keeps no files"),
        ("-i x=int64[2,4]", "int64"),
        ("other.onnx", "take different inputs"),
    ],
)
def test_a_mistake_on_the_command_line_is_three_short_lines(
    folder: Path, words: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(cli, ["bench", "relu.onnx", *words.split(), "-q"])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_gives_json_and_a_plot_and_exits_1_if_a_model_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(rounds, "_MORE", 1)
    words = "bench relu.onnx leaky.onnx --at batch=2 --threads 1 --seconds 0.1 --processes 3 --json --plot plot.svg"
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 1, done.stderr
    relu, leaky = json.loads(done.stdout)["rows"]
    assert (relu["status"], relu["candidate"], relu["at"]) == ("runs", "relu.onnx", {"batch": 2})
    assert (leaky["status"], leaky["engine"], leaky["threads"]) == ("wrong", "onnxruntime", 1)
    assert (folder / "plot.svg").read_text().startswith("<svg")


def test_an_interrupt_ends_the_children_and_prints_the_table_so_far(folder: Path) -> None:
    words = ["bench", "relu.onnx", "--at", "batch=2", "--threads", "1", "--seconds", "200"]
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("torchport")), *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stderr is not None
    while "measuring" not in process.stderr.readline():
        pass
    time.sleep(3)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    pids = [int(word) for word in children.stdout.split()]
    assert pids
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted: this is the table so far" in out
    assert "Traceback" not in errors
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
