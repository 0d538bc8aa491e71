"""docs/edit.md: its commands run, and its examples give what GraphSurgeon's give."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime
import pytest
from click.testing import CliRunner

import torchport as tp
from torchport.cli.edit import command

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "edit.md").read_text()
EXAMPLES = {m[1]: m[2] for m in re.finditer(r"```python\n# (\d\d)\n(.*?)```", PAGE, re.DOTALL)}
Array = np.ndarray[Any, Any]
Models = dict[str, ir.Model]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("edit_page")
    shutil.copy(ROOT / "examples" / "01_first_export" / "model.py", path)
    return path


@pytest.fixture(scope="module")
def models(folder: Path) -> Models:
    """What `model` is after each example, the whole page run from top to bottom in the folder."""
    found: Models = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        names: dict[str, Any] = {}
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(block, names)  # the page's own code
            if match := re.match(r"# (\d\d)\n", block):
                found[match[1]] = names["model"].clone()
    return found


def answers(model: Any, *feeds: Array) -> list[Array]:
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    proto.ir_version = 9  # GraphSurgeon writes the newest there is
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found: list[Array] = session.run(None, dict(zip([i.name for i in session.get_inputs()], feeds, strict=True)))
    return found


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_the_commands_of_the_page_run(models: Models, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
    commands = [shlex.split(line[2:]) for line in blocks.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 18
    for words in commands:
        assert words[:2] == ["torchport", "edit"]
        if "changes.yaml" in words:
            words[-1] = "changed.onnx"  # the page's own would change the model that the others start from
        done = CliRunner().invoke(command, words[2:])
        assert done.exit_code == 0, f"{words}\n{done.output}"
        assert [f for f in tp.graph.lint(words[words.index("-o") + 1]) if f.severity == "error"] == []


def test_every_edit_is_in_the_table() -> None:
    from torchport.editing.registry import EDITS

    table = PAGE.partition("## All edits")[2].partition("## Names")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([a-z-]+)`", "".join(rows))) == sorted(EDITS)


def test_the_lines_counted_are_the_lines_there_are() -> None:
    rows = re.findall(r"^\| (\d\d) .*\| ([\d +]+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == [f"{n:02}" for n in range(1, 12)]
    counted = {name: sum(int(n) for n in text.split("+")) for name, text in rows}
    lines = {name: len(code.strip().splitlines()) for name, code in EXAMPLES.items()}
    lines["04"] += 4  # it goes on with the model of 03
    assert counted == lines


def test_01_and_02_create_a_model(models: Models) -> None:
    x, y = gs.Variable("X", np.float32, (1, 3, 5, 5)), gs.Variable("Y", np.float32, (1, 3, 1, 1))
    node = gs.Node("GlobalLpPool", attrs={"p": 2}, inputs=[x], outputs=[y])
    theirs = gs.export_onnx(gs.Graph([node], [x], [y], opset=18))
    assert np.allclose(answers(models["01"], random(1, 3, 5, 5)), answers(theirs, random(1, 3, 5, 5)))

    x, y = gs.Variable("X", np.float32, (1, 3, 224, 224)), gs.Variable("Y", np.float32, (1, 5, 222, 222))
    weight = gs.Constant("W", np.ones((5, 3, 3, 3), np.float32))
    theirs = gs.export_onnx(gs.Graph([gs.Node("Conv", inputs=[x, weight], outputs=[y])], [x], [y], opset=18))
    assert np.array_equal(answers(models["02"], random(1, 3, 224, 224)), answers(theirs, random(1, 3, 224, 224)))
    assert list(models["02"].graph.initializers) == ["W"]


def affine() -> Any:
    """x0 + (a x1 + b), as GraphSurgeon holds it."""
    shape = (1, 3, 224, 224)
    x0, x1, y = (gs.Variable(n, np.float32, shape) for n in ("x0", "x1", "Y"))
    a, b = (gs.Constant(n, np.ones(shape, np.float32)) for n in "ab")
    product, total = gs.Variable("mul_out", np.float32), gs.Variable("add_out", np.float32)
    pairs = [("Mul", [a, x1], product), ("Add", [product, b], total), ("Add", [x0, total], y)]
    return gs.Graph([gs.Node(op, inputs=i, outputs=[o]) for op, i, o in pairs], [x0, x1], [y], opset=18)


def test_03_isolates_a_subgraph(models: Models) -> None:
    graph = affine()
    tensors = graph.tensors()
    graph.inputs, graph.outputs = [tensors["x1"]], [tensors["add_out"]]
    theirs = gs.export_onnx(graph.cleanup())
    assert [n.op_type for n in models["03"].graph] == [n.op_type for n in theirs.graph.node] == ["Mul", "Add"]
    x = random(1, 3, 224, 224)
    assert np.array_equal(answers(models["03"], x), answers(theirs, x))


def test_04_modifies_a_model(models: Models) -> None:
    graph = affine()
    add = graph.nodes[1]
    add.op, add.attrs["alpha"] = "LeakyRelu", 0.02
    del add.inputs[1]
    out = gs.Variable("identity_out", np.float32, (1, 3, 224, 224))
    graph.nodes.append(gs.Node("Identity", inputs=add.outputs, outputs=[out]))
    graph.outputs = [out]
    theirs = gs.export_onnx(graph.cleanup(remove_unused_graph_inputs=True).toposort())
    ours = models["04"]
    assert [n.op_type for n in ours.graph] == [n.op_type for n in theirs.graph.node]
    assert [v.name for v in ours.graph.outputs] == ["identity_out"]
    assert [v.name for v in ours.graph.inputs] == [i.name for i in theirs.graph.input] == ["x1"]
    x = random(1, 3, 224, 224)
    assert np.array_equal(answers(ours, x), answers(theirs, x))


def test_05_folds_constants(models: Models) -> None:
    assert [n.op_type for n in models["05"].graph] == ["Add"]
    (weight,) = models["05"].graph.initializers.values()
    assert weight.const_value is not None
    assert weight.const_value.numpy().tolist() == [[3, 3, 3]]
    assert np.array_equal(answers(models["05"], random(1, 3))[0], random(1, 3) + 3)


def test_06_removes_a_node(models: Models) -> None:
    assert [n.op_type for n in models["06"].graph] == ["Identity", "Identity"]
    assert np.array_equal(answers(models["06"], random(1, 3, 8, 8))[0], random(1, 3, 8, 8))


def test_07_builds_what_the_layer_api_builds(models: Models) -> None:
    x = random(64, 64)
    expected = np.maximum(np.ones((64, 64), np.float32) @ x.T + 0.5, 0) + 1
    assert np.allclose(answers(models["07"], x)[0], expected, rtol=1e-5, atol=1e-5)
    assert models["07"].opset_imports[""] == 11
    assert sorted(models["07"].graph.initializers) == ["A", "B", "C", "D"]


def test_08_replaces_a_subgraph(models: Models) -> None:
    assert [n.op_type for n in models["08"].graph] == ["Identity", "Clip", "Identity"]
    x = 10 * random(4, 4)
    assert np.array_equal(answers(models["08"], x)[0], np.clip(x, 0, 6))


def test_09_works_with_shapes(models: Models) -> None:
    x = random(2, 3, 7, 5)
    flat, partly = answers(models["09"], x)
    assert np.array_equal(flat, x.reshape(-1))
    assert np.array_equal(partly, x.reshape(2, 3, 35))


def test_10_makes_the_batch_dynamic(models: Models) -> None:
    graph = gs.import_onnx(onnx.shape_inference.infer_shapes(ir.to_proto(fixed_batch())))
    graph.inputs[0].shape[0] = "N"
    next(n for n in graph.nodes if n.op == "Reshape").inputs[1].values = np.array([-1, 21632])
    graph.outputs[0].shape = ("N", 10)
    theirs = gs.export_onnx(graph)
    x = random(3, 3, 28, 28)
    assert np.array_equal(answers(models["10"], x), answers(theirs, x))
    assert [str(d) for d in models["10"].graph.outputs[0].shape or ()] == ["N", "10"]


def fixed_batch() -> ir.Model:
    """The model of example 10 before its last line."""
    names: dict[str, Any] = {"ir": ir, "tp": tp, "np": np}
    exec(EXAMPLES["10"].rpartition("tp.graph.set_dim")[0], names)
    model: ir.Model = names["model"]
    return model


def test_11_calls_a_local_function(models: Models) -> None:
    assert [f.name for f in models["11"].functions.values()] == ["SelfAttention"]
    assert sum(n.op_type == "SelfAttention" for n in models["11"].graph) == 4
    x = wanted = 0.1 * random(2, 5, 4)
    for n in range(4):
        projected = wanted @ (np.eye(4) / (n + 1))
        scores = np.exp(projected @ projected.transpose(0, 2, 1) / 2)
        wanted = wanted + np.maximum(scores / scores.sum(-1, keepdims=True) @ projected, 0)
    assert np.allclose(answers(models["11"], x)[0], wanted, rtol=1e-3)
