"""Recipes: what they hold, what they refuse, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import torchport as tp
from torchport.editing.recipe import apply, from_text, passed_over, read_steps
from torchport.editing.registry import EDITS
from torchport.errors import InputError

MODEL = """<ir_version: 9, opset_import: ["": 18, "devtech": 1]>
g (float[batch,4] x) => (float[batch,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
  [first] a = Relu(x)
  [second] b = Mul(a, w)
  [third] f = devtech.FooOp(b)
  [last] y = Tanh(f)
}
"""
# the first Mul also goes out, so that Mul and Add there cannot become one node
TWO_PLACES = """<ir_version: 9, opset_import: ["": 18]>
g (float[4] x, float[4] z) => (float[4] y, float[4] kept) {
  kept = Mul(x, z)
  s = Add(kept, z)
  t = Mul(s, z)
  y = Add(t, x)
}
"""
FUSE = "(a, b, c) => (y) { t = Mul(a, b)  y = Add(t, c) }"


@pytest.fixture
def model() -> ir.Model:
    return ir.from_onnx_text(MODEL)


def run(model: ir.Model, **feeds: Any) -> Any:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, {k: np.asarray(v, np.float32) for k, v in feeds.items()})[0]


def test_edits_are_applied_in_the_order_of_the_recipe(model: ir.Model) -> None:
    recipe = [{"bypass": "devtech::FooOp"}, {"rename": {"x": "image"}}, {"insert": "Neg after image"}, "sort"]
    done = tp.graph.edit(model, recipe).model
    assert [n.op_type for n in done.graph] == ["Neg", "Relu", "Mul", "Tanh"]
    assert np.array_equal(run(done, image=[[-1, 0, 1, 2]]), np.tanh(np.array([[1, 0, 0, 0]], np.float32)))


def test_a_recipe_is_read_from_yaml(model: ir.Model, tmp_path: Path) -> None:
    path = tmp_path / "changes.yaml"
    path.write_text("# what we ship\n- bypass: [devtech::FooOp, last]\n- set_dim: {batch: 2}\n- sort\n")
    done = tp.graph.edit(model, path).model
    assert [n.op_type for n in done.graph] == ["Relu", "Mul"]
    assert list(done.graph.inputs[0].shape or ()) == [2, 4]


def test_a_domain_may_be_left_out_where_one_operator_has_that_name(model: ir.Model) -> None:
    tp.graph.bypass(model, "FooOp")
    assert [n.op_type for n in model.graph] == ["Relu", "Mul", "Tanh"]


def test_a_domain_is_asked_for_where_two_operators_have_one_name(model: ir.Model) -> None:
    model.graph.append(ir.Node("other", "FooOp", [model.graph.inputs[0]], name="another"))
    model.graph.opset_imports["other"] = 1
    with pytest.raises(InputError, match="several operators are called 'FooOp'") as raised:
        tp.graph.bypass(model, "FooOp")
    assert raised.value.next_step == "say which: devtech::FooOp, other::FooOp"


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("rename", "x=image", "rename: x=image"),
        ("set-dim", "batch=2", "set-dim: batch=2"),
        ("replace", "Relu by Elu", "replace: Relu by Elu"),
        ("insert", "{node: Clip, after: a, inputs: [0.0]}", "insert: {node: Clip, after: a, inputs: [0.0]}"),
        ("set-attribute", "Cast:to=float16", "set-attribute: Cast:to=float16"),
        ("set-attribute", "Gemm:alpha=", "set-attribute: Gemm:alpha="),
        ("preprocess", "scale: 255, normalize: imagenet", "preprocess: [{scale: 255}, {normalize: imagenet}]"),
        ("set-weights", "w.npz", "set-weights: w.npz"),
        ("set-opset", "18", "set-opset: 18"),
        ("sort", None, "sort"),
    ],
)
def test_a_step_is_shown_as_it_is_written(name: str, text: str | None, shown: str) -> None:
    assert str(from_text(EDITS[name], text)) == shown


def test_names_that_look_like_numbers_are_names() -> None:
    model = ir.from_onnx_text('<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
    tp.graph.edit(model, [{"rename": {"x": "492"}}])
    tp.graph.edit(model, [{"rename": {492: 7}}])
    assert model.graph.inputs[0].name == "7"


def test_an_opset_may_be_text_or_number(model: ir.Model) -> None:
    assert tp.graph.edit(model, [{"set-opset": "19"}]).model.opset_imports[""] == 19
    assert tp.graph.edit(model, [{"set-opset": 20}]).model.opset_imports[""] == 20


@pytest.mark.parametrize(
    ("entry", "what", "next_step"),
    [
        ({"bypas": "x"}, "there is no edit 'bypas'", "did you mean bypass?"),
        ({"bypass": None}, "the edit 'bypass' takes NODE, not 'None'", "Take a node out: what it gets goes on."),
        ({"bypass": []}, "the edit 'bypass' takes NODE, not '[]'", "Take a node out: what it gets goes on."),
        ({"bypass": [None]}, "'node' of the edit 'bypass' is a text or a list, not 'None'", "give a text or a list"),
        ({"bypass": True}, "the edit 'bypass' takes NODE, not 'True'", "Take a node out: what it gets goes on."),
        ({"rename": {}}, "the edit 'rename' takes OLD=NEW, not '{}'", "A tensor, node or dimension; enc.*=encoder.*"),
        ({"rename": {"x": True}}, "'names' of the edit 'rename' is a mapping, not \"{'x': True}\"", "give a mapping"),
        ({"sort": 3}, "the edit 'sort' takes no value, not '3'", "Put nodes after what they need."),
        ({"set-shape": {"x": 5}}, "'shape' of the edit 'set-shape' is a list, not '5'", "give a list"),
        ({"set-dtype": {"x": False}}, "'dtype' of the edit 'set-dtype' is a text, not 'False'", "write it in quotes"),
        ({"set-opset": "new"}, "'target' of the edit 'set-opset' is a whole number, not 'new'", "give a whole number"),
        ({"chain": {"second": 5, "connect": 1}}, "'connect' of the edit 'chain' is a mapping, not '1'", "give a"),
        ({"replace": {"what": "Relu"}}, "the edit 'replace' does not fit: missing a required", "it takes what, by,"),
        (
            {"replace": {"what": "Relu", "by": "Elu", "inptus": 1}},
            "the edit 'replace' does not fit: got an",
            "it takes",
        ),
        ({"insert": {"node": "Neg", "after": "a", "inputs": 5}}, "'inputs' of the edit 'insert' is a list", "give"),
        ({"outline": {"nodes": [1.5, None], "name": "f"}}, "'nodes' of the edit 'outline' is a text or a list", "give"),
        ({"a": 1, "b": 2}, "entry 1 of the recipe is no edit", "write each as `- name: value`"),
        (7, "entry 1 of the recipe is no edit: 7", "write each as `- name: value`"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_plain_words(
    model: ir.Model, entry: Any, what: str, next_step: str
) -> None:
    with pytest.raises(InputError) as raised:
        tp.graph.edit(model, [entry])
    assert raised.value.what.startswith(what)
    assert (raised.value.next_step or "").startswith(next_step)


ODD: list[Any] = [
    None,
    True,
    5,
    2.5,
    "",
    "Relu",
    [],
    [1],
    [None],
    [[1]],
    {},
    {"x": None},
    {"x": [1]},
    {5: 6},
    {None: 1},
]


@pytest.mark.parametrize("name", EDITS)
def test_no_odd_value_ends_in_a_traceback(name: str) -> None:
    """Every one is applied or refused as the user's mistake; other errors would fail this test."""
    refused = 0
    for value in ODD:
        try:
            tp.graph.edit(ir.from_onnx_text(MODEL), [{name: value}])
        except tp.TorchportError as error:
            refused += error.exit_code == 2
    assert refused >= 10


def test_the_lines_of_a_broken_recipe_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("- sort\n- bypass: ]\n")
    with pytest.raises(InputError, match="no valid YAML") as raised:
        read_steps(path)
    assert str(raised.value.where).startswith(f"{path}, line 2")


@pytest.mark.parametrize(("text", "what"), [("", "holds none"), ("a: 1", "holds none"), ("[]", "holds none")])
def test_a_recipe_without_edits_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        read_steps(path)


def test_a_recipe_that_is_missing_binary_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_steps(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="is no text"):
        read_steps(tmp_path / "binary.yaml")
    (tmp_path / "huge.yaml").write_text("- sort\n" * 200_000)
    with pytest.raises(InputError, match="too large for a recipe"):
        read_steps(tmp_path / "huge.yaml")


@pytest.mark.parametrize(
    ("edit", "kept"),
    [
        ({"rename": {"x": "image"}}, True),
        ({"set-metadata": {"author": "me"}}, True),
        ("sort", True),
        ({"set-dim": {"batch": 2}}, False),
        ({"bypass": "Relu"}, False),
        ("deduplicate", True),  # it finds nothing to do
    ],
)
def test_the_proof_is_dropped_when_more_than_names_changed(model: ir.Model, edit: Any, kept: bool) -> None:
    model.metadata_props["torchport.proof"] = "{}"
    done = tp.graph.edit(model, [edit]).model
    assert ("torchport.proof" in done.metadata_props) is kept


def test_a_pattern_says_which_places_it_passes_over() -> None:
    model = ir.from_onnx_text(TWO_PLACES)
    step = from_text(EDITS["replace"], f"{FUSE} by (a, b, c) => (y) {{ t = Mul(b, a)  y = Add(c, t) }}")
    (reason,) = passed_over(model, step)
    assert "'kept'" in reason
    assert apply(model, step) == 1
    assert passed_over(model, from_text(EDITS["bypass"], "Add")) == []


def test_a_constant_made_of_an_input_can_be_folded() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[2] x, float[2] a, float[2] b) => (float[2] y) { c = Add(a, b)  y = Mul(x, c) }"""
    model = tp.graph.edit(ir.from_onnx_text(text), [{"to-constant": {"a": 1.0, "b": [2, 3]}}, "fold"]).model
    assert [n.op_type for n in model.graph] == ["Mul"]
    assert run(model, x=[1, 10]).tolist() == [3, 40]


def test_a_node_without_a_name_is_called_by_what_it_makes() -> None:
    header = '<ir_version: 9, opset_import: ["": 18]>'
    model = ir.from_onnx_text(header + " g (float[2] x) => (float[2] y) { a = Relu(x)  b = Neg(a)  y = Tanh(b) }")
    for node in model.graph:
        node.name = ""
    tp.graph.edit(model, [{"bypass": "b"}])
    assert [n.op_type for n in model.graph] == ["Relu", "Tanh"]
    with pytest.raises(InputError, match="no node is named"):
        tp.graph.bypass(model, "")


def test_the_step_that_is_refused_is_named(model: ir.Model) -> None:
    with pytest.raises(InputError, match="there is no node or operator 'Rleu'") as raised:
        tp.graph.edit(model, [{"bypass": "FooOp"}, {"bypass": "Rleu"}])
    assert raised.value.where == "in the edit bypass: Rleu"


def test_an_input_that_is_no_number_is_refused(model: ir.Model) -> None:
    with pytest.raises(InputError, match=r"\{'a': 1\} is no tensor of numbers"):
        tp.graph.edit(model, [{"insert": {"node": "Clip", "after": "a", "inputs": [{"a": 1}]}}])


PLAIN = """<ir_version: 9, opset_import: ["": 18]>
g (float[batch,4] x) => (float[batch,4] y) { [first] a = Relu(x)  [second] b = Identity(a)  [last] y = Tanh(b) }
"""


def test_a_verified_recipe_returns_its_proof() -> None:
    model = ir.from_onnx_text(PLAIN)
    model.metadata_props["torchport.proof"] = "{}"
    done = tp.graph.edit(model, [{"bypass": "Identity"}, {"rename": {"x": "image"}}], verify=True)
    assert done.model is model
    assert [(one.edit, one.changed) for one in done.edits] == [("bypass: Identity", 1), ("rename: x=image", 1)]
    assert done.proof is not None
    assert done.proof.passed
    assert [n.op_type for n in model.graph] == ["Relu", "Tanh"]


def test_a_recipe_that_changes_the_outputs_is_refused_and_leaves_the_model_as_it_was() -> None:
    model = ir.from_onnx_text(PLAIN)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(tp.ProofError, match="does not answer as before") as raised:
        tp.graph.edit(model, [{"rename": {"x": "image"}}, {"replace": "Relu by Neg"}], verify=True)
    assert not raised.value.proof.passed
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_given_inputs_are_those_that_are_verified() -> None:
    """Relu and Abs agree on what is not negative, and differ on the inputs that are made up."""
    recipe = [{"replace": "Relu by Abs"}]
    model = ir.from_onnx_text(PLAIN.replace("batch", "2"))
    with pytest.raises(tp.ProofError):
        tp.graph.edit(model, recipe, verify=True)
    with pytest.raises(InputError, match="there is no input 'z'"):
        tp.graph.edit(model, recipe, verify=True, inputs={"z": np.zeros((2, 4), np.float32)})
    with pytest.raises(tp.ProofError) as raised:
        tp.graph.edit(model, recipe, verify=True, inputs={"x": np.full((2, 4), -1, np.float32)})
    assert raised.value.proof.cases[0].verdict == "fail"


def test_a_file_is_edited_and_verified_without_being_changed(tmp_path: Path) -> None:
    path = tp.graph.save(ir.from_onnx_text(PLAIN), tmp_path / "model.onnx")
    before = path.read_bytes()
    done = tp.graph.edit(path, [{"set-opset": 20}, "fold"], verify=True)
    assert done.model.opset_imports[""] == 20
    assert path.read_bytes() == before


def test_weights_of_a_pytorch_file_are_set_from_python_too(tmp_path: Path) -> None:
    import torch

    model = ir.from_onnx_text(MODEL)
    torch.save({"w": torch.zeros(4)}, tmp_path / "weights.pt")
    assert tp.graph.set_weights(model, tmp_path / "weights.pt") == 1
    assert not model.graph.initializers["w"].const_value.numpy().any()  # type: ignore[union-attr]
