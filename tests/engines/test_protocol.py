"""Engines are found by their entry points, say what they run, and prepare models for their known faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import torchport as tp
from torchport.engines import registry
from torchport.engines.onnxruntime.engine import OnnxRuntime
from torchport.engines.openvino import OpenVino
from torchport.engines.protocol import Capabilities, Engine, OpenOptions, one_node, use_of
from torchport.engines.reference import ReferenceEngine
from torchport.errors import EngineMissingError

ROOT = Path(__file__).parents[2]
ENGINES = [OnnxRuntime(), OpenVino(), ReferenceEngine()]


def model_of(body: str, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : {opset}]> g {body}')


# What an engine can run


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_says_what_it_can_run(engine: Engine) -> None:
    can = engine.capabilities()
    assert re.match(r"\d+\.\d+", can.version)
    assert can.devices
    assert can.opsets is not None
    assert can.opsets[0] <= 13 <= 20 <= can.opsets[1]
    assert {"float32", "float16", "bfloat16", "int64", "bool"} <= set(can.dtypes)
    assert can.runs is not None


def test_a_kernel_is_there_for_one_type_and_not_for_another() -> None:
    runs = OnnxRuntime().capabilities().runs
    assert runs is not None
    for dtype, expected in (("float", True), ("bfloat16", False)):
        model = model_of(f"({dtype}[n] x) => ({dtype}[n] y) {{ y = Exp(x) }}")
        assert runs(one_node(model.graph[0], use_of(model.graph[0]), model)) is expected


def test_an_engine_that_says_nothing_is_not_taken_to_have_kernels(
    register_engine: Callable[[str, type[Engine]], None],
) -> None:
    class Silent(OnnxRuntime):
        def capabilities(self) -> Capabilities:
            return Capabilities()

    register_engine("silent", Silent)
    faults = tp.graph.lint(model_of("(float[n] x) => (float[n] y) { y = Exp(x) }"), engine="silent")
    assert "the engine 'silent' does not say which kernels it has" in [f.message for f in faults]


# Workarounds


def test_a_preparation_lists_its_workarounds() -> None:
    padded = "(float[1,1,4,4] x) => (float[1,1,3,3] y) { p = Constant<value_ints = [0,0,1,1,0,0,1,1]>() "
    model = model_of(padded + "q = Pad(x, p) y = MaxPool<kernel_shape = [4, 4]>(q) }")
    prepared = OnnxRuntime().prepare(model)
    assert [(w.name, w.nodes) for w in prepared.workarounds] == [("pad-kept-from-pool", 1)]
    assert [n.op_type for n in prepared.model.graph] == ["Constant", "Pad", "Max", "MaxPool"]
    assert prepared.findings == []


def test_a_preparation_says_which_nodes_are_computed_in_another_type() -> None:
    prepared = OnnxRuntime().prepare(model_of("(bfloat16[n] x) => (bfloat16[n] y) { y = Exp(x) }"))
    assert [(w.name, w.nodes) for w in prepared.workarounds] == [("bfloat16-computed-in-float32", 1)]
    assert "no bfloat16 kernel of Exp" in str(prepared.findings[0])


def test_a_model_without_trouble_is_left_as_it_is() -> None:
    for engine in ENGINES:
        model = model_of("(float[n] x) => (float[n] y) { y = Exp(x) }")
        before = ir.to_proto(model).SerializeToString()
        prepared = engine.prepare(model)
        assert prepared.workarounds == ()
        assert ir.to_proto(prepared.model).SerializeToString() == before


# Threads


@pytest.mark.parametrize("engine", ENGINES)
def test_many_threads_run_one_model(engine: Engine) -> None:
    body = "z = ReduceSum<keepdims = 0>(x) c = Cast<to = 7>(z) t = Constant<value = bool {1}>()"
    body += " y = Loop(c, t, x) <body = b"
    body += " (int64 i, bool go, float[n] v) => (bool on, float[n] w) { on = Identity(go) w = Add(v, v) }> }"
    runner = engine.open(model_of(f"(float[n] x) => (float[n] y) {{ {body}"), OpenOptions())

    def run(size: int) -> bool:
        x = np.ones(size, np.float32)
        return bool(np.array_equal(runner.run({"x": x})[0], x * 2**size))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, [n % 9 + 1 for n in range(200)]))


# How engines are found


def test_an_entry_point_of_an_older_version_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    old = EntryPoint("onnxruntime", "torchport.engines.onnxruntime.engine:open_session", registry.GROUP)
    monkeypatch.setattr(registry, "_entries", lambda: {"onnxruntime": old})
    with pytest.raises(EngineMissingError, match="open_session") as caught:
        tp.session(model_of("(float[n] x) => (float[n] y) { y = Exp(x) }"))
    assert "`pip install -e .`" in str(caught.value)
    [check] = [c for c in tp.doctor().checks if c.group == "engines"]
    assert check.status == "wrong"
    assert "`pip install -e .`" in check.remedy


def test_an_environment_without_engines_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", dict)
    with pytest.raises(EngineMissingError, match="nor any other") as caught:
        tp.session(model_of("(float[n] x) => (float[n] y) { y = Exp(x) }"))
    assert "`pip install -e .`" in str(caught.value)
    assert not tp.doctor().healthy


def test_an_engine_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = EntryPoint("warp", "torchport.engines.warp:Warp [warp_speed]", registry.GROUP)
    entries = {**registry._entries(), "warp": absent}
    monkeypatch.setattr(registry, "_entries", lambda: entries)
    assert "warp" not in registry.engine_names()
    with pytest.raises(EngineMissingError, match="the engine 'warp' is not installed") as caught:
        tp.session(model_of("(float[n] x) => (float[n] y) { y = Exp(x) }"), "warp")
    assert caught.value.next_step == 'pip install "torchport[warp_speed]"'
    [check] = [c for c in tp.doctor().checks if c.name == "warp"]
    assert check.status == "optional"


def test_what_is_no_engine_is_refused_by_name(register_engine: Callable[[str, type[Engine]], None]) -> None:
    register_engine("odd", dict)  # type: ignore[arg-type]
    with pytest.raises(EngineMissingError, match=r"the engine 'odd' cannot be used: .* is no subclass of"):
        registry.find_engine("odd")


PACKAGES = (
    "environment.py",
    "irtools/metadata.py",
    "capture/origins.py",
    "capture/repairs/symbolic_sizes.py",
    "operators/definition.py",
    "optimization/scheme.py",
)


def test_no_engine_is_named_outside_its_own_module() -> None:
    """The default in registry.py aside. Elsewhere the same word is the name of a package that pip installs."""
    source = ROOT / "src" / "torchport"
    named = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if not re.search(r"engines/(onnxruntime/|openvino\.py|tensorrt\.py)", path.as_posix())
        and re.search(r"""["'](onnxruntime|openvino|reference|tensorrt)["']""", path.read_text())
    }
    assert named - set(PACKAGES) == {
        "engines/registry.py",
        "comparison/sides.py",  # there it is no engine
        "bundles/cpp_project.py",  # the engines of the C++ library
        "optimization/result.py",  # what models are optimized for
    }


# The example of CONTRIBUTING.md


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line, where a package with CONTRIBUTING's engine is installed."""
    folder = tmp_path_factory.mktemp("counting")
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## How to add an engine")[2].partition("\n## ")[0]
    (folder / "my_engines.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    entry = section.partition('[project.entry-points."torchport.engines"]\n')[2].partition("```")[0].replace('"', "")
    (folder / "my_engines-1.0.dist-info").mkdir()
    (folder / "my_engines-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-engines\nVersion: 1.0\n"
    )
    (folder / "my_engines-1.0.dist-info" / "entry_points.txt").write_text(f"[torchport.engines]\n{entry}")
    text = "(float[n,4] x) => (float[n,4] y) { a = Exp(x) y = Relu(a) }"
    onnx.save(ir.to_proto(model_of(text)), folder / "model.onnx")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("torchport")), *words]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)

    return run


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("run model.onnx --engine counting -i float32[2,4]", "y: float32[2,4]"),
        ("compare model.onnx --engines onnxruntime,counting --layers -i float32[2,4]", "counting"),
        ("lint model.onnx --engine counting", "no faults"),
        ("doctor", "counting"),
    ],
)
def test_the_example_engine_works(
    counting: Callable[..., subprocess.CompletedProcess[str]], words: str, shown: str
) -> None:
    done = counting(*words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown in done.stdout
