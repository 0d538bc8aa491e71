"""An edit that is refused, or fails midway, leaves the model as it was: every object, name, order and note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import torchport as tp
from torchport.editing.registry import EDITS
from torchport.editing.transaction import Snapshot, all_or_nothing
from torchport.errors import InputError
from torchport.irtools.traversal import all_nodes, all_values

TEXT = """<ir_version: 9, opset_import: ["": 18, "my": 1], producer_name: "me">
g (float[batch,4] x, bool c, float[4] bias) => (float[batch,4] y, float[batch,4] z)
<float[4] w = {1.0, 2.0, 3.0, 4.0}, float[4] same = {1.0, 2.0, 3.0, 4.0}, float[4] unused = {0.0, 0.0, 0.0, 0.0}> {
  [early] early = Relu(x)
  [late] late = Neg(early)
  [k1] k1 = Constant<value = float[4] {1.0, 1.0, 1.0, 1.0}>()
  [k2] k2 = Add(k1, w)
  [second] b = Mul(late, k2)
  [third] f = my.Foo(b)
  [call] d = my.Twice(f)
  [branch] e = If(c) <then_branch = yes () => (float[batch,4] t) { [inner] t = Mul(d, w) },
                      else_branch = no () => (float[batch,4] u) { u = Add(d, same) }>
  [dead] dead = Exp(e)
  [last] y = Tanh(e)
  [sum] z = Add(e, bias)
}
<opset_import: ["": 18], domain: "my">
Twice (p) => (q) { q = Add(p, p) }
"""
SECOND = '<ir_version: 9, opset_import: ["": 18]> h (float[batch,4] y) => (float[batch,4] out) { out = Abs(y) }'


def make(edit: str = "") -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    model.metadata_props.update({"author": "me", "torchport.proof": "{}"})
    model.graph.node("second").metadata_props["pkg.torch.onnx.name_scopes"] = "block"
    model.graph.initializers["w"].metadata_props["note"] = "a weight"
    if edit == "sort":
        early = model.graph.node("early")
        model.graph.remove(early)
        model.graph.insert_after(model.graph.node("late"), early)
    if edit == "clear-shapes":
        value = model.graph.node("late").outputs[0]
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 4])
    return model


def state(model: ir.Model) -> tuple[Any, ...]:
    """Everything that is saved, and which objects it consists of, with their users."""
    objects = [id(model.graph), *map(id, all_nodes(model)), *map(id, all_values(model))]
    uses = {id(v): {(id(u.node), u.idx) for u in v.uses()} for v in all_values(model)}
    graphs = [v.graph for v in all_values(model)], [n.graph for n in all_nodes(model)]
    return ir.to_proto(model).SerializeToString(deterministic=True), objects, uses, graphs


@pytest.fixture
def second(tmp_path: Path) -> str:
    path = tmp_path / "second.onnx"
    tp.graph.save(ir.from_onnx_text(SECOND), path)
    return str(path)


def good(name: str, second: str) -> Any:
    """A value with which the edit changes the model."""
    return {
        "rename": {"x": "image", "w": "weight"},
        "rename-dim": {"batch": "n"},
        "rename-node": {"third": "foo"},
        "rename-tensor": {"t": "inside"},
        "bypass": "my::Foo",
        "remove": "dead",
        "replace": {"what": "Mul", "by": "Sub"},
        "insert": "Neg after d",
        "set-attribute": {"node": "k1", "name": "value", "value": [1.0, 2.0, 3.0, 4.0]},
        "set-dim": {"batch": 2},
        "set-shape": {"x": [2, 4]},
        "set-dtype": {"x": "float16"},
        "preprocess": {"steps": [{"scale": 255}], "input": "x"},
        "postprocess": {"steps": ["softmax"], "output": "y"},
        "to-input": "w",
        "to-constant": {"bias": 1.0},
        "set-weights": {"source": {"w": np.zeros(4, np.float32)}},
        "set-opset": 20,
        "outline": {"nodes": "k2", "name": "my::New"},
        "chain": {"second": second},
        "merge": {"second": second, "prefix": "second_"},
        "set-metadata": {"author": None, "b": "c"},
        "rename-metadata": {"author": "who"},
    }.get(name)


@pytest.mark.parametrize("name", EDITS)
def test_a_recipe_that_is_refused_midway_leaves_the_model_as_it_was(name: str, second: str) -> None:
    model = make(name)
    before = state(model)
    with pytest.raises(InputError, match="no node or operator 'Nowhere'"):
        tp.graph.edit(model, [{name: good(name, second)}, {"bypass": "Nowhere"}])
    assert state(model) == before


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_changes_the_model_object_that_it_is_given(name: str, second: str) -> None:
    model = make(name)
    before = state(model)
    tp.graph.edit(model, [{name: good(name, second)}])
    assert state(model) != before


class _StopError(Exception):
    pass


def _stopping(count: int, function: Any) -> Any:
    """The function, which raises when it is called that many times, and works again after that."""
    calls = iter(range(count))

    def wrapped(*args: Any, **named: Any) -> Any:
        if next(calls, None) == count - 1:
            raise _StopError
        return function(*args, **named)

    return wrapped


MUTATORS = ("Node.replace_input_with", "Graph.remove", "Graph.insert_before", "Value.replace_all_uses_with")


def _failures(name: str, second: str) -> Iterator[None]:
    for mutator in MUTATORS:
        owner = getattr(ir, mutator.partition(".")[0])
        for count in (1, 2, 4):
            model = make(name)
            before = state(model)
            with pytest.MonkeyPatch.context() as patch:
                method = mutator.partition(".")[2]
                patch.setattr(owner, method, _stopping(count, getattr(owner, method)))
                try:
                    tp.graph.edit(model, [{name: good(name, second)}])
                except _StopError:
                    assert state(model) == before, (mutator, count)
                    yield


def test_an_edit_that_fails_at_any_point_leaves_the_model_as_it_was(second: str) -> None:
    assert sum(1 for name in EDITS for _ in _failures(name, second)) > 40


def test_nodes_and_values_that_the_caller_holds_stay_valid() -> None:
    model = make()
    last, weight = model.graph.node("last"), model.graph.initializers["w"]
    with pytest.raises(InputError):
        tp.graph.edit(model, [{"remove": "last"}, {"rename": {"w": "v"}}, {"bypass": "Nowhere"}])
    assert (last.graph, last.name, weight.name) == (model.graph, "last", "w")
    tp.graph.bypass(model, "third")
    assert last.graph is model.graph
    assert model.graph.initializers["w"] is weight


def test_an_edit_inside_another_is_restored_with_it() -> None:
    model = make()
    before = state(model)

    def both() -> None:
        with all_or_nothing(model):
            tp.graph.rename(model, {"x": "image"})
            tp.graph.bypass(model, "Nowhere")

    with pytest.raises(InputError):
        both()
    assert state(model) == before


def test_a_node_that_was_made_but_not_inserted_is_no_user_of_a_value() -> None:
    model = make()
    value = model.graph.inputs[0]
    mine = ir.node("Abs", [value])
    snapshot = Snapshot(model)
    ir.node("Neg", [value])
    snapshot.restore()
    assert {use.node.op_type for use in value.uses()} == {"Relu", "Abs"}
    assert mine.inputs == (value,)


def test_a_snapshot_copies_no_weights() -> None:
    weight = ir.Value(name="w", const_value=ir.LazyTensor(_unread, ir.DataType.FLOAT, ir.Shape([2**30]), name="w"))
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[weight], opset_imports={"": 18}), ir_version=9)
    Snapshot(model).restore()
    assert model.graph.initializers["w"] is weight


def _unread() -> Any:
    raise AssertionError("the weight was read")
