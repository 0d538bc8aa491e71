"""`torchport edit FILE`, as a user calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from click.testing import CliRunner, Result
from onnx import numpy_helper
from torch import nn

import torchport as tp
from torchport.cli.edit import command

Array = np.ndarray[Any, Any]
Torchport = Callable[..., subprocess.CompletedProcess[str]]
BRANCHING = """<ir_version: 9, opset_import: ["": 18, "devtech": 1]>
g (float[N,4] x) => (float[N,4] y) {
  total = ReduceSum<keepdims = 0>(x)
  zero = Constant<value = float {0.0}>()
  up = Greater(total, zero)
  f = devtech.FooOp(x)
  y = If(up) <
    then_branch = a () => (float[N,4] t) { t = Relu(f) },
    else_branch = b () => (float[N,4] e) { e = Neg(f) }
  >
}
"""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
        return x + nn.functional.silu(self.up(mixed.transpose(1, 2).reshape(n, length, 8)))


@pytest.fixture(scope="module")
def exports(onnx_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real exports: a convolutional net with three dynamic dimensions, and an attention block of fixed size."""
    folder = tmp_path_factory.mktemp("exports")
    shutil.copy(onnx_file, folder / "net.onnx")
    torch.manual_seed(0)
    tp.export(Attention().eval(), (torch.randn(1, 5, 8),), output=folder / "block.onnx")
    return folder


@pytest.fixture
def folder(exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for path in exports.iterdir():
        shutil.copy(path, tmp_path)
    onnx.save(onnx.parser.parse_model(BRANCHING), "branching.onnx")
    return tmp_path


def edit(*args: str) -> Result:
    """Run it, and hold it to what every call promises: no traceback, 80 columns of result, a sound model."""
    done = CliRunner().invoke(command, args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "--json" in args or all(len(line) <= 80 for line in done.stdout.splitlines())
    if done.exit_code == 0:
        assert [f for f in tp.graph.lint(args[args.index("-o") + 1]) if f.severity == "error"] == []
    return done


def answers(path: str, *feeds: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(path)
    outputs: list[Array] = session.run(None, {i.name: f for i, f in zip(session.get_inputs(), feeds, strict=True)})
    return outputs


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def weights(path: str) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def metadata(path: str) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(path).metadata_props}


# --- the command ------------------------------------------------------------------------------------------------------


def test_edits_are_made_in_order_and_told_of(folder: Path) -> None:
    done = edit("net.onnx", "--rename", "x=image", "--insert", "Neg after image", "-o", "out.onnx")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "rename: x=image: 1 changed",
        "insert: Neg after image: 1 changed",
        "not verified: --verify proves that it answers as before",
        "saved to out.onnx",
    ]
    x = random(2, 3, 8, 8)
    for before, after in zip(answers("net.onnx", -x), answers("out.onnx", x), strict=True):
        assert np.array_equal(before, after)


def test_the_order_is_the_one_given_even_between_recipe_and_options(folder: Path) -> None:
    Path("r.yaml").write_text("- rename: {image: pixels}\n- rename: {pixels: frame}\n")
    done = edit("net.onnx", "--rename", "x=image", "--recipe", "r.yaml", "--rename", "frame=x", "-o", "out.onnx")
    assert done.exit_code == 0
    assert [line.split(": ")[1] for line in done.stdout.splitlines()[:4]] == [
        "x=image", "image=pixels", "pixels=frame", "frame=x",
    ]  # fmt: skip


def test_a_file_is_edited_in_place(folder: Path) -> None:
    x = random(2, 3, 8, 8)
    before = answers("net.onnx", x)
    done = edit("net.onnx", "--rename", "x=image", "--set-dim", "batch=2", "--verify", "-q", "-o", "net.onnx")
    assert done.exit_code == 0
    assert done.stderr == ""
    session = onnxruntime.InferenceSession("net.onnx")
    assert session.get_inputs()[0].name == "image"
    assert session.get_inputs()[0].shape[0] == 2
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(before, answers("net.onnx", x), strict=True))


def test_json_has_the_edits_and_the_proof(folder: Path) -> None:
    done = edit("net.onnx", "--rename", "x=image", "--fold", "--verify", "--json", "-o", "out.onnx")
    found = json.loads(done.stdout)
    assert found["path"] == "out.onnx"
    assert found["edits"][0] == {"edit": "rename: x=image", "changed": 1, "left": []}
    assert found["proof"]["passed"] is True


def test_json_has_the_error_too(folder: Path) -> None:
    done = edit("net.onnx", "--bypass", "Rleu", "--json", "-o", "out.onnx")
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert found["what"] == "there is no node or operator 'Rleu' in the model"
    assert found["where"] == "in the edit bypass: Rleu"
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "no edit is given"),
        (("--bypas", "x"), "No such option"),
        (("--rename", "x"), "takes OLD=NEW, not 'x'"),
        (("--recipe", "missing.yaml"), "the recipe 'missing.yaml' cannot be read"),
        (("--replace", "{what: Relu"), "no valid YAML"),
        (("--set-opset", "abc"), "is a whole number, not 'abc'"),
        (("--set-shape", "x=5"), "'shape' of the edit 'set-shape' is a list, not '5'"),
        (("--set-dim", "x:9=batch"), "there is no axis 9"),
        (("--set-attribute", "Conv:pads=[0,0]"), "Attribute pads has incorrect size"),
        (("--outline", "module:nothing as my::F"), "no node of the model comes from a module 'nothing'"),
        (("--rename", "x=y", "--verify", "-i", "x=float32[1,3,8,8]"), "there is no input 'x'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_mistake_exits_2_and_saves_nothing(folder: Path, args: tuple[str, ...], says: str) -> None:
    done = edit("net.onnx", *args, "-q", "-o", "out.onnx")
    assert done.exit_code == 2
    assert says in done.stderr
    assert not Path("out.onnx").exists()


def test_an_opset_that_has_no_such_operator_exits_1(folder: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[1,1,4,4] x, float[1,2,2,2] grid) => (float[1,1,2,2] y)
    { y = GridSample(x, grid) }"""
    onnx.save(onnx.parser.parse_model(text), "grid.onnx")
    done = edit("grid.onnx", "--set-opset", "13", "-q", "-o", "out.onnx")
    assert done.exit_code == 1
    assert done.stderr.startswith("refused: ")
    assert "GridSample" in done.stderr
    assert not Path("out.onnx").exists()


def test_files_that_are_none_exit_2(folder: Path) -> None:
    assert "No such file" in edit("missing.onnx", "--sort", "-o", "out.onnx").stderr
    Path("text.onnx").write_text("hello")
    assert edit("text.onnx", "--sort", "-o", "out.onnx").exit_code == 2
    done = edit("net.onnx", "--sort", "-o", "nowhere/out.onnx")
    assert done.exit_code == 2
    assert "nowhere" in done.stderr


def test_the_installed_command_edits(folder: Path, torchport: Torchport) -> None:
    done = torchport("edit", "net.onnx", "--rename", "x=image", "-q", "-o", "out.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert onnx.load("out.onnx").graph.input[0].name == "image"
    done = torchport("edit", "net.onnx", "--rename", "z=image", "-q", "-o", "out.onnx")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from torchport.cli.edit import command; "
        "assert CliRunner().invoke(command, ['--help']).exit_code == 0; "
        "print({'torch', 'onnx', 'onnx_ir', 'numpy', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_edits_that_may_be_given_without_a_value_are(folder: Path) -> None:
    done = edit("net.onnx", "--inline", "--strip-metadata", "-q", "-o", "out.onnx")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "inline: 0 changed"
    assert metadata("out.onnx") == {}


# --- what is proven ---------------------------------------------------------------------------------------------------


def test_a_change_of_the_answers_is_refused_and_not_saved(folder: Path) -> None:
    done = edit("net.onnx", "--bypass", "Relu", "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 1
    assert "NOT proven" in done.stderr
    assert "refused: the changed model does not answer as before" in done.stderr
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize(
    "args", [("--preprocess", "scale: 255"), ("--postprocess", "{steps: [softmax], output: logits}")]
)
def test_an_edit_that_is_meant_to_change_answers_is_named(folder: Path, args: tuple[str, str]) -> None:
    done = edit("net.onnx", *args, "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 1
    assert f"next:  nothing was changed; apply {args[0].removeprefix('--')} without verifying" in done.stderr


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--preprocess", "cast: float32, scale: 255"), "inputs"),
        (("--set-dtype", "x=float16"), "inputs"),
        (("--to-input", "fc.bias"), "inputs"),
        (("--postprocess", "{steps: [argmax], output: logits}"), "outputs"),
    ],
)
def test_changed_inputs_and_outputs_cannot_be_verified(folder: Path, args: tuple[str, str], what: str) -> None:
    done = edit("net.onnx", *args, "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 2
    assert f"the edits changed the {what}: there is nothing to compare with" in done.stderr
    assert edit("net.onnx", *args, "-q", "-o", "out.onnx").exit_code == 0


def test_an_input_of_another_layout_cannot_be_verified(folder: Path) -> None:
    done = edit("block.onnx", "--preprocess", "transpose: [0, 2, 1]", "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 2
    assert "where: before: x: float32[1,5,8]; now: x: float32[1,8,5]" in done.stderr


def test_a_freed_batch_is_proven_row_by_row(folder: Path) -> None:
    done = edit("block.onnx", "--set-dim", "x:0=batch", "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 0
    assert "'batch' was fixed to 1 before: other sizes were compared one row at a time" in done.stdout
    x = random(3, 5, 8)
    rows = [answers("block.onnx", x[n : n + 1])[0] for n in range(3)]
    assert np.allclose(answers("out.onnx", x)[0], np.concatenate(rows), atol=1e-6)


def test_a_freed_length_is_proven_at_the_length_it_had(folder: Path) -> None:
    args = ("--set-dim", "x:0=batch", "--set-dim", "x:1=length")
    done = edit("block.onnx", *args, "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 0
    assert "'length' was fixed to 5 before: at other sizes there is no answer" in done.stdout
    assert answers("out.onnx", random(2, 9, 8))[0].shape == (2, 9, 8)


def proof_of(path: str) -> Any:
    return json.loads(metadata(path)["torchport.proof"])


def test_the_proof_goes_with_the_numbers_and_stays_with_the_names(folder: Path) -> None:
    assert set(proof_of("net.onnx")["sizes"]) == {"batch", "height", "width"}
    edit("net.onnx", "--rename", "batch=n", "--set-metadata", "author=me", "-q", "-o", "named.onnx")
    assert set(proof_of("named.onnx")["sizes"]) == {"n", "height", "width"}
    edit("net.onnx", "--replace", "Relu by Elu", "-q", "-o", "other.onnx")
    assert "torchport.proof" not in metadata("other.onnx")
    edit("net.onnx", "--rename", "batch=n", "--set-opset", "17", "--verify", "-q", "-o", "proven.onnx")
    assert set(proof_of("proven.onnx")["sizes"]) == {"n", "height", "width"}


def test_a_proof_that_was_stripped_does_not_come_back(folder: Path) -> None:
    edit("net.onnx", "--strip-metadata", "torchport.proof", "--verify", "-q", "-o", "out.onnx")
    assert "torchport.proof" not in metadata("out.onnx")
    assert "torchport.versions" in metadata("out.onnx")


# --- edits on real exports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("--rename", "conv.*=body.*"),
        ("--rename-dim", "batch=n", "--rename-tensor", "x=image"),
        ("--replace", "Relu by (x) => (y) { n = Neg(x)  m = Relu(n)  y = Add(x, m) }"),
        ("--insert", "{node: Clip, after: logits, inputs: [-1000.0, 1000.0]}"),
        ("--set-dim", "batch=2", "--set-dim", "height=8"),
        ("--set-shape", "x=[2,3,8,8]"),
        ("--clear-shapes",),
        ("--set-opset", "13"),
        ("--set-opset", "13", "--set-opset", "21"),
        ("--fold", "--sort", "--deduplicate", "--remove-unused"),
        ("--outline", "module:fc as my::Head"),
        ("--outline", "Gemm as my::Head", "--inline", "Head"),
        ("--set-dtype", "x=float16", "--set-dtype", "x=float32"),
        ("--to-input", "fc.bias", "--to-constant", "fc.bias=bias.npy"),
    ],
    ids=" ".join,
)
def test_the_answers_stay_through_edits_that_keep_them(folder: Path, args: tuple[str, ...]) -> None:
    np.save("bias.npy", weights("net.onnx")["fc.bias"])
    done = edit("net.onnx", *args, "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 0, done.stderr
    x = random(2, 3, 8, 8)
    for before, after in zip(answers("net.onnx", x), answers("out.onnx", x), strict=True):
        assert np.allclose(before, after, atol=1e-5)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt", "pth"])
def test_weights_come_from_every_kind_of_file(folder: Path, kind: str) -> None:
    from safetensors.numpy import save_file

    bias = np.arange(5, dtype=np.float32)
    arrays: dict[str, Any] = {"fc.bias": bias}
    path = f"weights.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "safetensors":
        save_file(arrays, path)
    else:
        state = {"fc.bias": torch.from_numpy(bias)}
        torch.save(state if kind == "pt" else {"state_dict": state}, path)
    done = edit("net.onnx", "--set-weights", path, "-q", "-o", "out.onnx")
    assert done.stdout.splitlines()[0] == f"set-weights: {path}: 1 changed"
    assert np.array_equal(weights("out.onnx")["fc.bias"], bias)


def test_weights_may_have_other_names_in_their_file(folder: Path) -> None:
    arrays: dict[str, Any] = {"model.fc.bias": np.ones(5, np.float32)}
    np.savez("w.npz", **arrays)
    value = "{source: w.npz, names: {'model.*': '*'}}"
    assert edit("net.onnx", "--set-weights", value, "-q", "-o", "out.onnx").exit_code == 0
    assert weights("out.onnx")["fc.bias"].tolist() == [1, 1, 1, 1, 1]


def test_files_without_weights_are_refused(folder: Path) -> None:
    torch.save(nn.Linear(2, 2), "module.pt")
    torch.save([1, 2], "list.pt")
    Path("junk.pt").write_text("hello")
    Path("junk.npz").write_text("hello")
    says = {
        "module.pt": "it holds no weights that can be read safely",
        "junk.pt": "it holds no weights that can be read safely",
        "list.pt": "it holds no state dict",
        "missing.pt": "the file is missing",
        "missing.npz": "the file is missing",
        "junk.npz": "it cannot be read: it holds Python objects, no plain arrays",
        "model.h5": "weights come from a .safetensors, .npz or .pt",
    }
    for path, what in says.items():
        done = edit("net.onnx", "--set-weights", path, "-q", "-o", "out.onnx")
        assert (done.exit_code, what in done.stderr) == (2, True), done.stderr


def test_a_place_that_a_pattern_may_not_take_is_told_of(folder: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[4] x, float[4] z) => (float[4] y, float[4] kept) {
      kept = Mul(x, z)  s = Add(kept, z)  t = Mul(s, z)  y = Add(t, x) }"""
    onnx.save(onnx.parser.parse_model(text), "two.onnx")
    change = "(a, b, c) => (y) { t = Mul(a, b) y = Add(t, c) } by (a, b, c) => (y) { t = Mul(b, a) y = Add(c, t) }"
    done = edit("two.onnx", "--replace", change, "--verify", "-q", "-o", "out.onnx")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].endswith(": 1 changed")
    assert done.stdout.splitlines()[1].startswith("· a place was left as before: 'kept'")
    found = json.loads(edit("two.onnx", "--replace", change, "--json", "-o", "out.onnx").stdout)
    assert len(found["edits"][0]["left"]) == 1
    assert found["edits"][0]["edit"] == f"replace: {change}"


def test_edits_reach_into_branches_and_other_domains(folder: Path) -> None:
    args = ("--bypass", "FooOp", "--replace", "{what: Relu, by: LeakyRelu, attributes: {alpha: 0.5}}")
    assert edit("branching.onnx", *args, "--set-opset", "21", "-q", "-o", "out.onnx").exit_code == 0
    x = np.array([[4, -2, 0, 0]], np.float32)
    assert answers("out.onnx", x)[0].tolist() == [[4, -1, 0, 0]]
    assert answers("out.onnx", -x)[0].tolist() == [[4, -2, 0, 0]]


def test_a_model_is_made_ready_for_bytes_and_gives_classes(folder: Path) -> None:
    before = "cast: float32, scale: 255, normalize: imagenet, transpose: NHWC->NCHW"
    after = "{steps: [softmax, {topk: 2}], output: logits}"
    done = edit("net.onnx", "--preprocess", before, "--postprocess", after, "-q", "-o", "out.onnx")
    assert done.exit_code == 0
    image = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    x = (image / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    logits = answers("net.onnx", x.transpose(0, 3, 1, 2).astype(np.float32))[0]
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    values, indices = answers("out.onnx", image)[:2]
    assert np.allclose(values, -np.sort(-chances, axis=-1)[:, :2], atol=1e-5)
    assert np.array_equal(indices, np.argsort(-chances, axis=-1)[:, :2])


def test_models_are_chained_and_merged(folder: Path) -> None:
    head = "<ir_version: 9, opset_import: ['': 18]> h (float[n,5] logits) => (float[n,5] p) { p = Softmax(logits) }"
    onnx.save(onnx.parser.parse_model(head.replace("'", '"')), "head.onnx")
    x = random(2, 3, 8, 8)
    logits, pooled = answers("net.onnx", x)
    assert edit("net.onnx", "--chain", "head.onnx", "-q", "-o", "chained.onnx").exit_code == 0
    session = onnxruntime.InferenceSession("chained.onnx")
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": x}), strict=True))
    assert np.allclose(found["p"], np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), atol=1e-6)
    done = edit("net.onnx", "--merge", "{second: block.onnx, prefix: b_}", "-q", "-o", "merged.onnx")
    assert done.exit_code == 0
    both = answers("merged.onnx", x, random(1, 5, 8))
    assert np.allclose(both[1], pooled, atol=1e-6)
    assert np.allclose(both[2], answers("block.onnx", random(1, 5, 8))[0], atol=1e-6)
