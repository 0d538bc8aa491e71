"""tp.tune and torchport tune: the fastest right way to run a model, saved, resumed, and opened again."""

from __future__ import annotations

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
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

import torchport as tp
from torchport.benchmark.children import Candidate
from torchport.benchmark.rounds import Point
from torchport.cli.main import cli
from torchport.engines.tuned import read_tuned
from torchport.errors import (
    EngineError,
    EngineMissingError,
    FileError,
    InputError,
    OptionError,
    RandomModelError,
    SaveError,
    UnsafeFileError,
)
from torchport.numerics.tolerance import limits_for
from torchport.optimization.tuning import seconds_of
from torchport.optimization.tuning_result import Tuning
from torchport.optimization.tuning_turns import Conditions, Turns

HEADER = '<ir_version: 8, opset_import: ["" : 17]> g'
WEIGHTS = ",".join(f"{(n % 13) / 13 - 0.4:.3f}" for n in range(512))
MATRIX = (
    "(float[batch,64] x) => (float[batch,8] y) <float[64,8] w = {" + WEIGHTS + "}> { h = MatMul(x, w) y = Relu(h) }"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "matrix.onnx"
    tp.graph.save(ir.from_onnx_text(f"{HEADER} {MATRIX}"), path)
    return path


@pytest.fixture(scope="module")
def tuned(model: Path) -> Tuning:
    return tp.tune(model, model.parent / "best", budget=12, engines=["onnxruntime"], at={"batch": [1, 4]})


def save(folder: Path, body: str) -> Path:
    path = folder / "model.onnx"
    tp.graph.save(ir.from_onnx_text(f"{HEADER} {body}"), path)
    return path


def test_the_folder_opens_with_what_was_found_and_gives_the_same_numbers(model: Path, tuned: Tuning) -> None:
    x = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    session = tp.session(tuned.folder)
    own = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(session(x), own, rtol=1e-4, atol=1e-6)
    stored = read_tuned(Path(tuned.folder))
    assert session.engine == stored.engine == "onnxruntime"
    assert session.findings == ()
    assert sorted(path.name for path in Path(tuned.folder).iterdir()) == sorted(["tuned.json", stored.model])


def test_the_model_as_given_stays_in_the_race(tuned: Tuning) -> None:
    given = next(row for row in tuned.rows if row.candidate == "onnxruntime, as given")
    assert given.ratio == 1.0
    assert given.status != "dropped"
    assert tuned.speedup >= 1.0
    assert tuned.best in {row.candidate for row in tuned.rows}
    assert tuned.best in tuned.frontier


def test_every_candidate_is_measured_or_says_why_not(tuned: Tuning) -> None:
    for row in tuned.rows:
        assert bool(row.reason) == (row.status == "dropped")
        assert row.status == "dropped" or (row.ratio and row.seconds and row.size and row.noise is not None)


def test_the_text_fits_a_terminal_and_json_has_the_frontier(tuned: Tuning) -> None:
    assert max(map(len, str(tuned).splitlines())) <= 80
    fields = json.loads(json.dumps(tuned.to_json()))
    assert fields["frontier"] == list(tuned.frontier)
    assert len(fields["rows"]) == len(tuned.rows)


def test_the_plot_has_a_point_for_each_candidate_that_ran(tuned: Tuning, tmp_path: Path) -> None:
    tuned.plot(tmp_path / "tuning.svg")
    root = ElementTree.parse(tmp_path / "tuning.svg").getroot()
    circles = [e for e in root if e.tag.endswith("circle")]
    assert len(circles) == sum(row.status != "dropped" for row in tuned.rows)


def test_another_engine_takes_its_own_options(tuned: Tuning) -> None:
    x = np.ones((2, 64), np.float32)
    other = tp.session(tuned.folder, "reference")
    assert other.engine == "reference"
    np.testing.assert_allclose(other(x), tp.session(tuned.folder)(x), rtol=1e-4, atol=1e-6)


def test_another_machine_is_told(tuned: Tuning, tmp_path: Path) -> None:
    stored = json.loads((Path(tuned.folder) / "tuned.json").read_text())
    (tmp_path / stored["model"]).write_bytes((Path(tuned.folder) / stored["model"]).read_bytes())
    (tmp_path / "tuned.json").write_text(json.dumps({**stored, "cpu": "Z80", "cpus": 1}))
    finding = str(tp.session(tmp_path).findings[-1])
    assert "it was tuned on Z80 with 1 CPUs" in finding
    assert "torchport tune" in finding


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("{", FileError, "cannot be read"),
        ("[]", FileError, "cannot be read"),
        ('{"model": "../secret.onnx"}', FileError, "cannot be read"),
        (None, FileError, "has no tuned.json"),
    ],
)
def test_a_broken_folder_is_named(tmp_path: Path, text: str | None, error: type[Exception], match: str) -> None:
    if text is not None:
        (tmp_path / "tuned.json").write_text(text)
    with pytest.raises(error, match=match):
        tp.session(tmp_path)


@pytest.mark.parametrize("name", ["../secret.onnx", "/etc/model.onnx", "folder/model.onnx"])
def test_a_model_outside_the_folder_is_not_opened(tuned: Tuning, tmp_path: Path, name: str) -> None:
    stored = json.loads((Path(tuned.folder) / "tuned.json").read_text())
    (tmp_path / "tuned.json").write_text(json.dumps({**stored, "model": name}))
    with pytest.raises(UnsafeFileError, match="outside its folder"):
        tp.session(tmp_path)


def test_a_budget_too_small_leaves_a_valid_model(model: Path, tmp_path: Path) -> None:
    done = tp.tune(model, tmp_path / "best", budget="0.01s", engines=["onnxruntime"])
    assert done.best == "onnxruntime, as given"
    assert any("budget" in str(finding) for finding in done.findings)
    assert any(row.reason == "not tried: the budget was used up" for row in done.rows)
    assert tp.session(tmp_path / "best")(np.ones((1, 64), np.float32)).shape == (1, 8)


def test_a_pytorch_model_is_exported_first(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3).eval()
    x = torch.randn(2, 4)
    tp.tune(net, tmp_path / "best", inputs=(x,), budget=2, engines=["onnxruntime"])
    torch.testing.assert_close(tp.session(tmp_path / "best")(x), net(x))


def test_samples_are_calibrated_with_or_compared_on(model: Path, tmp_path: Path) -> None:
    samples = [{"x": np.random.default_rng(n).normal(size=(2, 64)).astype(np.float32)} for n in range(6)]
    done = tp.tune(model, tmp_path / "best", data=samples, budget=2, engines=["onnxruntime"])
    assert done.rows[0].noise is not None
    assert not any("made-up" in str(finding) for finding in done.findings)


def test_with_a_tolerance_int8_takes_part(model: Path, tmp_path: Path) -> None:
    samples = [{"x": np.random.default_rng(n).normal(size=(2, 64)).astype(np.float32)} for n in range(8)]
    only: dict[str, Any] = {"engines": ["onnxruntime"]}
    done = tp.tune(model, tmp_path / "best", data=samples, tolerance="5%", budget=90, objective="size", **only)
    int8 = next(row for row in done.rows if row.candidate == "onnxruntime, int8")
    assert int8.noise is None or 0 < int8.noise < 0.1
    assert int8.status != "dropped", int8.reason
    x = samples[0]["x"]
    exact = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    given = tp.session(tmp_path / "best")(x)
    assert np.vdot(exact, given) / (np.linalg.norm(exact) * np.linalg.norm(given)) > 0.95


# Dropped candidates


def test_a_candidate_whose_numbers_differ_is_dropped_with_the_output(model: Path, tmp_path: Path) -> None:
    other = save(tmp_path, MATRIX.replace("Relu(h)", "LeakyRelu(h)"))
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    conditions = Conditions([Point("p", {}, {"x": x})], [("s", {"x": x})], ("y",), limits_for([], None))
    with Turns(Candidate("given", "engine", str(model), "onnxruntime"), conditions) as turns:
        found = turns.measure(Candidate("other", "engine", str(other), "onnxruntime"), best=1.0, seconds=60)
        same = turns.measure(Candidate("same", "engine", str(model), "onnxruntime"), best=1.0, seconds=60)
        lost = turns.measure(
            Candidate("lost", "engine", str(tmp_path / "no.onnx"), "onnxruntime"), best=1.0, seconds=60
        )
    assert found.dropped.startswith("less accurate than allowed: output 'y'")
    assert found.ratio is None
    assert same.dropped == ""
    assert same.noise == 0
    assert lost.dropped == "cannot be opened: No such file or directory"


# Ctrl-C, kill -9, and the search that goes on


def start(model: Path, output: Path) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("torchport")), "tune", str(model), "-o", str(output)]
    return subprocess.Popen(
        [*command, "--budget", "10m", "--engines", "onnxruntime"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_an_interrupted_search_leaves_the_best_so_far(model: Path, tmp_path: Path) -> None:
    process = start(model, tmp_path / "best")
    assert process.stderr is not None
    assert any("threads=1" in line for line in iter(process.stderr.readline, ""))
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the best so far is saved" in " ".join(output.split())
    assert tp.session(tmp_path / "best")(np.ones((1, 64), np.float32)).shape == (1, 8)


def test_a_search_that_was_killed_goes_on(model: Path, tmp_path: Path) -> None:
    process = start(model, tmp_path / "best")
    assert process.stderr is not None
    assert any("graph_optimization=basic" in line for line in iter(process.stderr.readline, ""))
    process.kill()
    process.communicate(timeout=60)
    assert tp.session(tmp_path / "best")(np.ones((1, 64), np.float32)).shape == (1, 8)
    time.sleep(0.2)
    done = tp.tune(model, tmp_path / "best", budget="4s", engines=["onnxruntime"])
    assert done.resumed >= 2
    assert not (tmp_path / "best" / ".search").exists()


# What a user gets wrong


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), (2.5, 2.5), ("7", 7)])
def test_a_budget_is_a_length_of_time(text: Any, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"budget": "soon"}, OptionError, "'soon' is no length of time"),
        ({"budget": 0}, OptionError, "0 is no length of time"),
        ({"budget": float("nan")}, OptionError, "no length of time"),
        ({"tolerance": "200%"}, OptionError, "cannot be meant"),
        ({"tolerance": {"psnr": 30}}, OptionError, "no limit 'psnr'"),
        ({"objective": "speed"}, OptionError, "no objective 'speed'"),
        ({"engines": ["tensorflow"]}, EngineMissingError, "no engine 'tensorflow'"),
        ({"engines": []}, OptionError, "no engine is named"),
        ({"at": {"length": 3}}, OptionError, "no dimension 'length'"),
        ({"data": []}, InputError, "no samples"),
        ({"data": [{"z": np.ones((1, 64), np.float32)}]}, InputError, "z"),
        ({"data": [{"x": np.ones((1, 63), np.float32)}]}, InputError, "63"),
        ({"data": [{"x": np.ones((1, 64), np.int64)}]}, InputError, "int64"),
        ({"data": [{"x": np.full((1, 64), np.nan, np.float32)}]}, InputError, "has NaN or infinity"),
        ({"data": "nowhere/"}, InputError, "no file or folder"),
    ],
)
def test_a_mistake_is_said_before_anything_is_measured(
    model: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        tp.tune(model, tmp_path / "best", **{"engines": ["onnxruntime"], **options})
    assert not (tmp_path / "best" / "tuned.json").exists()


def test_a_folder_with_other_files_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SaveError, match=r"holds other files: thesis\.txt"):
        tp.tune(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_random_model_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "(float[3] x) => (float[3] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    with pytest.raises(RandomModelError, match="two runs of the model as given"):
        tp.tune(path, tmp_path / "best", engines=["onnxruntime"])


def test_a_model_that_does_not_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = save(tmp_path, "(float[3] x) => (float[7] y) <int64[1] s = {7}> { y = Reshape(x, s) }")
    with pytest.raises((EngineError, InputError)):
        tp.tune(path, tmp_path / "best", engines=["onnxruntime"])


def test_the_command_says_a_mistake_in_three_lines(model: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["tune", str(model), "-o", str(tmp_path / "b"), "--tolerance", "much"])
    assert done.exit_code == 2
    assert "a drop of 'much' cannot be meant" in done.output
    assert "Traceback" not in done.output
    missing = CliRunner().invoke(cli, ["tune", "nothing.onnx", "-o", str(tmp_path / "b")])
    assert missing.exit_code == 2
    assert "nothing.onnx" in missing.output
