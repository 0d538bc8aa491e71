"""One node, tensor or module, with what stands around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from made_models import good, node, proto_of, square

import torchport as tp
from torchport.errors import InputError, OptionError
from torchport.inspection.look import ModuleView, NodeView, TensorView, look


def test_a_node_shows_who_feeds_it_and_who_reads_it() -> None:
    view = look(ir.from_proto(good()), node="mul")
    assert isinstance(view, NodeView)
    assert view.operator == "Mul"
    assert [(n.name, n.nodes) for n in view.inputs] == [("c", ("add (Add)",)), ("b", ("weight",))]
    assert view.inputs[0].type == "float32[32,32]"  # not stated, so inferred
    assert view.outputs[0].nodes == ("add (Add)",)


def test_a_node_is_found_by_what_it_makes_too() -> None:
    assert look(ir.from_proto(good()), node="d").name == "mul"  # type: ignore[union-attr]


def test_a_node_has_its_attributes_and_its_python_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = proto_of(node("LeakyRelu", "x", alpha=0.5))
    for key, value in (("source", "net.py:2"), ("module", "block.act")):
        entry = proto.graph.node[0].metadata_props.add()
        entry.key, entry.value = f"torchport.{key}", value
    (tmp_path / "net.py").write_text("import torch\n    y = act(x)\n")
    monkeypatch.chdir(tmp_path)
    view = look(ir.from_proto(proto), node="leakyrelu")
    assert isinstance(view, NodeView)
    assert view.attributes == {"alpha": "0.5"}
    assert (view.origin.source, view.origin.module, view.line) == ("net.py:2", "block.act", "y = act(x)")
    assert "y = act(x)" in str(view)


@pytest.mark.parametrize("source", ["/etc/hosts.py:1", "../up.py:1", "net.txt:1", "net.py:99", "net.py"])
def test_no_other_file_is_read_for_a_line(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "up.py").write_text("secret\n")
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    Path("net.txt").write_text("secret\n")
    Path("net.py").write_text("secret\n")
    proto = proto_of(node("Relu", "x"))
    entry = proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = "torchport.source", source
    assert "secret" not in str(look(ir.from_proto(proto), node="relu"))


def test_a_weight_shows_what_its_numbers_are_like() -> None:
    values = square()
    values[0, :4] = [np.nan, np.inf, -np.inf, 0]
    view = look(ir.from_proto(proto_of(node("MatMul", "x", "w"), weights={"w": values})), tensor="w")
    assert isinstance(view, TensorView)
    finite = values[np.isfinite(values)].astype(np.float64)
    found = view.statistics
    assert found is not None
    assert (found.nan, found.inf, found.zeros) == (1, 2, 1)
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert (found.mean, found.std) == pytest.approx((finite.mean(), finite.std()))
    assert view.consumers == ("matmul (MatMul)",)
    assert "1 NaN, 2 infinite" in " ".join(str(view).split())


def test_statistics_of_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchport.inspection import look as statistics

    whole = statistics.statistics(ir.tensor(square(3)))
    monkeypatch.setattr(statistics, "_CHUNK", 100)
    pieces = statistics.statistics(ir.tensor(square(3)))
    assert whole is not None
    assert pieces is not None
    assert (pieces.mean, pieces.std) == pytest.approx((whole.mean, whole.std))


def test_only_the_weight_asked_for_is_read(tmp_path: Path) -> None:
    model = tp.graph.load(tp.graph.save(ir.from_proto(good()), tmp_path / "m.onnx", external=True))
    look(model, tensor="w")
    raw = {n: v.const_value.raw is not None for n, v in model.graph.initializers.items() if v.const_value.nbytes > 1024}
    assert raw == {"w": True, "tied": False, "k": False}


def test_a_value_between_nodes_shows_both_ends() -> None:
    view = look(ir.from_proto(good()), tensor="c")
    assert isinstance(view, TensorView)
    assert (view.kind, view.producer, view.consumers) == ("tensor", "add (Add)", ("mul (Mul)",))
    assert view.statistics is None
    assert "the caller" in str(look(ir.from_proto(good()), tensor="y"))


def test_a_module_shows_what_goes_in_and_comes_out(onnx_file: Path) -> None:
    view = look(onnx_file, module="fc")
    assert isinstance(view, ModuleView)
    assert view.operators == {"Gemm": 1}
    assert {w.name for w in view.weights} == {"fc.weight", "fc.bias"}
    assert len(view.inputs) == len(view.outputs) == 1
    assert any("small_net.py" in source for source in view.sources)
    assert max(map(len, str(view).splitlines())) <= 80
    assert json.dumps(view.to_json())


@pytest.mark.parametrize(
    ("asked", "hint"),
    [({"node": "mull"}, "mul"), ({"tensor": "tide"}, "tied"), ({"module": "fx"}, "no named modules")],
)
def test_a_name_that_is_not_there_has_its_close_ones(asked: dict[str, str], hint: str) -> None:
    with pytest.raises(InputError, match="there is no") as caught:
        look(ir.from_proto(good()), **asked)  # type: ignore[arg-type]
    assert hint in (caught.value.next_step or "")


def test_one_thing_is_asked_for_at_a_time() -> None:
    with pytest.raises(OptionError, match="give one of"):
        look(ir.from_proto(good()), node="a", tensor="b")
