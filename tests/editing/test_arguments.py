"""Functions of tp.graph take names, patterns and onnx_ir objects, and models in every form; wrong types are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import torchport as tp
from torchport.errors import FileError, InputError, UserError

TEXT = """<ir_version: 9, opset_import: ["": 18, "my": 1]>
g (float[batch,4] x, float[4] bias) => (float[batch,4] y, float[batch,4] z)
<float[4] w = {1.0, 2.0, 3.0, 4.0}> {
  [first] a = LeakyRelu(x)
  [second] b = Mul(a, w)
  [call] c = my.Twice(b)
  [last] y = Tanh(c)
  [sum] z = Add(c, bias)
}
<opset_import: ["": 18], domain: "my">
Twice (p) => (q) { q = Add(p, p) }
"""


def proto() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def make() -> ir.Model:
    return ir.from_proto(proto())


def content(model: ir.Model) -> str:
    """The model as text, in which a weight looks the same in each of the ways to store it."""
    return str(onnx.printer.to_text(ir.to_proto(model)))


READERS: dict[str, Callable[[Any], Any]] = {
    "describe": tp.graph.describe,
    "lint": tp.graph.lint,
    "look": lambda m: tp.graph.look(m, node="second"),
    "diff": lambda m: tp.graph.diff(m, make()),
    "cut": lambda m: tp.graph.cut(m, "a", "c"),
    "split": lambda m: tp.graph.split(m, 2),
    "expose": lambda m: tp.graph.expose(m, "b"),
    "chain": lambda m: tp.graph.chain(m, make(), connect={"y": "x"}, prefix="n_"),
    "merge": lambda m: tp.graph.merge(m, make(), prefix="n_"),
    "set_opset": lambda m: tp.graph.set_opset(m, 20),
}
EDITS: dict[str, Callable[[Any], Any]] = {
    "rename": lambda m: tp.graph.rename(m, {"w": "weight", "second": "mul"}),
    "bypass": lambda m: tp.graph.bypass(m, "LeakyRelu"),
    "remove": lambda m: tp.graph.remove(m, "sum"),
    "set_attribute": lambda m: tp.graph.set_attribute(m, "LeakyRelu", "alpha", 0.5),
    "set_metadata": lambda m: tp.graph.set_metadata(m, {"a": "b"}),
    "strip_metadata": tp.graph.strip_metadata,
    "to_input": lambda m: tp.graph.to_input(m, "w"),
    "to_constant": lambda m: tp.graph.to_constant(m, "bias", 1.0),
    "set_weights": lambda m: tp.graph.set_weights(m, {"w": np.ones(4, np.float32)}),
    "set_dtype": lambda m: tp.graph.set_dtype(m, "x", "float16"),
    "sort": tp.graph.sort,
    "deduplicate": tp.graph.deduplicate,
    "remove_unused": tp.graph.remove_unused,
    "replace": lambda m: tp.graph.replace(m, "LeakyRelu", "Elu"),
    "insert": lambda m: tp.graph.insert(m, "Neg", after="b"),
    "inline": tp.graph.inline,
    "outline": lambda m: tp.graph.outline(m, ["first", "second"], "my::Part"),
    "fold": tp.graph.fold,
    "set_dim": lambda m: tp.graph.set_dim(m, "batch", 2),
    "set_shape": lambda m: tp.graph.set_shape(m, "x", [2, 4]),
    "clear_shapes": tp.graph.clear_shapes,
    "preprocess": lambda m: tp.graph.preprocess(m, [{"scale": 255}], input="x"),
    "postprocess": lambda m: tp.graph.postprocess(m, ["softmax"], output="y"),
}
# what is given by name with an object in its place
OBJECTS: dict[str, tuple[Callable[[Any], Any], Callable[[ir.Model], Any]]] = {
    "rename": (lambda m: tp.graph.rename(m, {"w": "v", "first": "n"}), lambda m: _renamed(m)),
    "bypass": (lambda m: tp.graph.bypass(m, "first"), lambda m: tp.graph.bypass(m, m.graph.node("first"))),
    "remove": (lambda m: tp.graph.remove(m, "sum"), lambda m: tp.graph.remove(m, [m.graph.node("sum")])),
    "set_attribute": (
        lambda m: tp.graph.set_attribute(m, "first", "alpha", 0.5),
        lambda m: tp.graph.set_attribute(m, m.graph.node("first"), "alpha", 0.5),
    ),
    "replace": (
        lambda m: tp.graph.replace(m, "first", "Add", inputs=["x", "w"]),
        lambda m: tp.graph.replace(m, m.graph.node("first"), "Add", inputs=[_value(m, "x"), _value(m, "w")]),
    ),
    "insert after a tensor": (
        lambda m: tp.graph.insert(m, "Add", after="b", inputs=["w"]),
        lambda m: tp.graph.insert(m, "Add", after=_value(m, "b"), inputs=[_value(m, "w")]),
    ),
    "insert after a node": (
        lambda m: tp.graph.insert(m, "Neg", after="second"),
        lambda m: tp.graph.insert(m, "Neg", after=m.graph.node("second")),
    ),
    "insert before": (
        lambda m: tp.graph.insert(m, "Neg", before="last"),
        lambda m: tp.graph.insert(m, "Neg", before=m.graph.node("last")),
    ),
    "outline": (
        lambda m: tp.graph.outline(m, ["first", "second"], "my::Part"),
        lambda m: tp.graph.outline(m, [m.graph.node("first"), m.graph.node("second")], "my::Part"),
    ),
    "inline": (
        lambda m: tp.graph.inline(m, "my::Twice"),
        lambda m: tp.graph.inline(m, m.functions["my", "Twice", ""]),
    ),
    "to_input": (lambda m: tp.graph.to_input(m, "w"), lambda m: tp.graph.to_input(m, _value(m, "w"))),
    "to_constant": (
        lambda m: tp.graph.to_constant(m, "bias", 1.0),
        lambda m: tp.graph.to_constant(m, _value(m, "bias"), 1.0),
    ),
    "set_weights": (
        lambda m: tp.graph.set_weights(m, {"w": np.ones(4, np.float32)}),
        lambda m: tp.graph.set_weights(m, {_value(m, "w"): np.ones(4, np.float32)}),
    ),
    "set_dtype": (
        lambda m: tp.graph.set_dtype(m, "x", "float16"),
        lambda m: tp.graph.set_dtype(m, _value(m, "x"), ir.DataType.FLOAT16),
    ),
    "set_shape": (
        lambda m: tp.graph.set_shape(m, "x", [2, 4]),
        lambda m: tp.graph.set_shape(m, _value(m, "x"), ir.Shape([2, 4])),
    ),
    "preprocess": (
        lambda m: tp.graph.preprocess(m, [{"scale": 255}], input="x"),
        lambda m: tp.graph.preprocess(m, [{"scale": 255}], input=_value(m, "x")),
    ),
    "postprocess": (
        lambda m: tp.graph.postprocess(m, ["softmax"], output="y"),
        lambda m: tp.graph.postprocess(m, ["softmax"], output=_value(m, "y")),
    ),
    "cut": (
        lambda m: tp.graph.cut(m, ["a"], ["call"]),
        lambda m: tp.graph.cut(m, _value(m, "a"), m.graph.node("call")),
    ),
    "split": (lambda m: tp.graph.split(m, ["b"]), lambda m: tp.graph.split(m, _value(m, "b"))),
    "expose": (
        lambda m: tp.graph.expose(m, ["a", "b"]),
        lambda m: tp.graph.expose(m, [_value(m, "a"), m.graph.node("second")]),
    ),
    "look at a node": (
        lambda m: tp.graph.look(m, node="second"),
        lambda m: tp.graph.look(m, node=m.graph.node("second")),
    ),
    "look at a tensor": (lambda m: tp.graph.look(m, tensor="b"), lambda m: tp.graph.look(m, tensor=_value(m, "b"))),
    "edit": (
        lambda m: tp.graph.edit(m, [{"bypass": "first"}]).model,
        lambda m: tp.graph.edit(m, [{"bypass": m.graph.node("first")}]).model,
    ),
}


def _value(model: ir.Model, name: str) -> ir.Value:
    return next(v for v in (*model.graph.inputs, *model.graph.initializers.values(), *_made(model)) if v.name == name)


def _made(model: ir.Model) -> list[ir.Value]:
    return [v for node in model.graph for v in node.outputs]


def _renamed(model: ir.Model) -> int:
    return tp.graph.rename(model, {_value(model, "w"): "v", model.graph.node("first"): "n"})


def plain(result: Any) -> Any:
    """A result in a form that can be compared."""
    if isinstance(result, ir.Model):
        return content(result)
    return [content(part) for part in result] if isinstance(result, list) and result else str(result)


def test_every_function_is_tested_here() -> None:
    others = {"load", "save", "edit", "rename_metadata"}
    assert {*READERS, *EDITS, *others} == set(tp.graph.__all__)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tp.graph.save(make(), tmp_path / "model.onnx")


@pytest.mark.parametrize("name", READERS)
def test_a_function_that_reads_takes_a_model_a_message_and_a_path(name: str, path: Path) -> None:
    read = READERS[name]
    model, message = make(), proto()
    wanted = plain(read(model))
    assert plain(read(message)) == wanted
    assert message == proto()
    assert content(model) == content(make()) or name in ("cut", "split")  # which infer types that are missing
    for form in (path, str(path)):
        assert plain(read(form)).__class__ is wanted.__class__
    assert plain(read(str(path))) == plain(read(path))


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_a_message_or_file_returns_the_changed_model(name: str, path: Path) -> None:
    model, message, before = make(), proto(), path.read_bytes()
    count = EDITS[name](model)
    assert isinstance(count, int)
    for form in (message, path, str(path)):
        done = EDITS[name](form)
        assert isinstance(done, ir.Model)
        assert plain(done) == content(model)
    assert message == proto()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_does_what_its_name_does(name: str) -> None:
    by_name, by_object = OBJECTS[name]
    one, other = make(), make()
    assert plain(by_name(one)) == plain(by_object(other))
    assert content(one) == content(other)


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_another_model_is_refused(name: str) -> None:
    """The object is taken from one model, and the function is called with another."""
    mine, other = make(), make()
    before = content(mine)
    function = OBJECTS[name][1]

    class Mixed:  # gives the objects of the other model
        graph, functions = other.graph, other.functions

    names = {n: getattr(tp.graph, n) for n in tp.graph.__all__}
    with pytest.MonkeyPatch.context() as patch:
        for key, call in names.items():
            patch.setattr(tp.graph, key, lambda _, *args, __call=call, **named: __call(mine, *args, **named))
        with pytest.raises(InputError, match="is not of this model"):
            function(Mixed())  # type: ignore[arg-type]
    assert content(mine) == before


WRONG: list[Any] = [5, 2.5, b"x", object(), {1: 2}, [None], [3], (b"x",), {"x": object()}, np.zeros(2), len, [{}]]
# Arguments that take any object, in one example each that is valid
GOOD: dict[str, dict[str, Any]] = {
    "load": {},
    "save": {"path": "out.onnx"},
    "cut": {},
    "describe": {},
    "expose": {},
    "lint": {},
    "look": {"node": "first"},
    "split": {"at": 2},
    "diff": {},
    "edit": {"recipe": ["sort"]},
    "rename": {"names": {"x": "image"}},
    "bypass": {"node": "LeakyRelu"},
    "remove": {"node": "sum"},
    "set_attribute": {"node": "first", "name": "alpha", "value": 1.0},
    "set_metadata": {"entries": {"a": "b"}},
    "rename_metadata": {"names": {"a": "b"}},
    "strip_metadata": {},
    "to_input": {"name": "w"},
    "to_constant": {"name": "bias", "value": 1.0},
    "set_weights": {"source": {"w": np.ones(4, np.float32)}},
    "set_dtype": {"name": "x", "dtype": "float16"},
    "sort": {},
    "deduplicate": {},
    "remove_unused": {},
    "replace": {"what": "LeakyRelu", "by": "Elu"},
    "insert": {"node": "Neg", "after": "b"},
    "chain": {},
    "merge": {"prefix": "n_"},
    "inline": {},
    "outline": {"nodes": "first", "name": "my::Part"},
    "fold": {},
    "set_dim": {"which": "batch", "to": 2},
    "set_shape": {"tensor": "x", "shape": [2, 4]},
    "clear_shapes": {},
    "preprocess": {"steps": [{"scale": 255}], "input": "x"},
    "postprocess": {"steps": ["softmax"], "output": "y"},
    "set_opset": {"target": 20},
}
MODELS = ("model", "first", "second", "a", "b")


@pytest.mark.parametrize("name", tp.graph.__all__)
def test_a_wrong_type_is_an_error_in_words(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each argument in turn is of a wrong type: the function refuses it, or has a use for it, and never breaks down."""
    monkeypatch.chdir(tmp_path)
    function = getattr(tp.graph, name)
    parameters = list(inspect.signature(function).parameters)
    refused = 0
    for field in parameters:
        for wrong in [None, *WRONG]:
            if field == "by" and wrong is len:  # a function of the caller's, which raises what it raises
                continue
            given = {n: make() for n in parameters if n in MODELS} | GOOD[name] | {field: wrong}
            try:
                function(**given)
            except UserError as error:  # any other one ends the test
                refused += isinstance(error, InputError)
    assert refused >= 11


@pytest.mark.parametrize("name", tp.graph.__all__)
@pytest.mark.parametrize("wrong", [None, 5, b"x", {}, [], object()])
def test_what_is_no_model_is_refused(name: str, wrong: Any) -> None:
    function = getattr(tp.graph, name)
    fields = [n for n in inspect.signature(function).parameters if n in (*MODELS, "path")]
    for field in fields:
        given = {n: make() for n in fields if n != "path"} | GOOD[name] | {field: wrong}
        with pytest.raises(InputError, match=f"'{field}' of {name}\\(\\) is"):
            function(**given)


def test_the_error_names_the_argument_and_what_it_takes() -> None:
    with pytest.raises(InputError, match=r"'names' of rename\(\) is a mapping from a text, .* to a text, not {'x': 5}"):
        tp.graph.rename(make(), {"x": 5})  # type: ignore[dict-item]
    with pytest.raises(InputError) as caught:
        tp.graph.bypass(make(), 5)  # type: ignore[arg-type]
    assert caught.value.what == "'node' of bypass() is a text, an onnx_ir.Node or a list of them, not 5"


def test_a_message_with_its_weights_in_a_file_is_refused(path: Path) -> None:
    model = make()
    large = ir.tensor(np.zeros(10_000, np.float32), name="large")
    model.graph.register_initializer(ir.Value(name="large", const_value=large, type=ir.TensorType(large.dtype)))
    tp.graph.save(model, path, external=True)
    with pytest.raises(FileError, match="does not say in which folder"):
        tp.graph.load(onnx.load(path, load_external_data=False))
    loaded = tp.graph.load(onnx.load(path)).graph.initializers["large"].const_value
    assert loaded is not None
    assert np.array_equal(loaded.numpy(), large.numpy())


def test_a_node_in_a_branch_is_no_place_to_cut() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[4] x, bool c) => (float[4] y) {
      y = If(c) <then_branch = t () => (float[4] p) { [inner] p = Neg(x) },
                 else_branch = e () => (float[4] q) { q = Abs(x) }>
    }"""
    model = ir.from_onnx_text(text)
    inner = next(n for n in model.graph.all_nodes() if n.name == "inner")
    for given in (inner, inner.outputs[0]):
        with pytest.raises(InputError, match="inside the body of"):
            tp.graph.cut(model, outputs=given)


def test_a_node_is_renamed_by_itself_where_others_have_its_name() -> None:
    model = make()
    for node in model.graph:
        node.name = "same"
    last = list(model.graph)[-1]
    assert tp.graph.rename(model, {last: "last"}) == 1
    assert [n.name for n in model.graph].count("same") == 4
    with pytest.raises(InputError, match="another node has that name"):
        tp.graph.rename(model, {last: "same"})


def test_a_model_may_be_given_by_name() -> None:
    assert tp.graph.bypass(model=make(), node="LeakyRelu") == 1  # type: ignore[call-overload]
