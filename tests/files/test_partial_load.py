"""A cut of a file and a cut of the same model in memory give the same part, or the same error."""

from __future__ import annotations

import random
import time
from pathlib import Path

import onnx
import pytest
from made_models import FLOAT, good, written
from onnx import TensorProto, helper

from torchport.editing.extract import cut
from torchport.errors import FileError, InputError, TorchportError
from torchport.files import partial_load
from torchport.files.onnx_files import load, save, to_bytes

ROUNDS = 150


def _info(name: str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["n"])


class _Made:
    """A random graph: chains and forks, branches that use outer values, functions, weights that are inputs too."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values = ["x", "other", "w", "default"]
        self.nodes: list[onnx.NodeProto] = []
        for place in range(self.random.randint(3, 25)):
            self._add(place)

    def _add(self, place: int) -> None:
        kind = self.random.choice(["Relu", "Add", "Add", "Split", "If", "Twice", "Constant", "Clip"])
        name, pick = f"n{place}", lambda: self.random.choice(self.values[-8:] if place % 3 else self.values)
        outs = [f"v{place}"]
        if kind == "If":
            node = helper.make_node(
                "If", ["c"], outs, name, then_branch=self._branch(place, "t"), else_branch=self._branch(place, "e")
            )
        elif kind == "Split":
            outs = [f"v{place}", self.random.choice(["", f"v{place}b"])]
            node = helper.make_node("Split", [pick()], outs, name, num_outputs=2)
        elif kind == "Twice":
            node = helper.make_node("Twice", [pick()], outs, name, domain="local")
        elif kind == "Constant":
            node = helper.make_node("Constant", [], outs, name, value=helper.make_tensor("", FLOAT, [1], [1.0]))
        elif kind == "Clip":
            node = helper.make_node("Clip", [pick(), "", "limit"], outs, name)
        else:
            node = helper.make_node(kind, [pick() for _ in range(2 if kind == "Add" else 1)], outs, name)
        self.nodes.append(node)
        self.values += filter(None, outs)

    def _branch(self, place: int, side: str) -> onnx.GraphProto:
        inner, out = f"{side}{place}", f"{side}{place}out"
        if self.random.random() < 0.2:
            inner = self.random.choice(["x", "w"])  # hides an outer value
        first = self.random.choice([name for name in self.values if name != inner])
        nodes = [
            helper.make_node("Relu", [first], [inner]),
            helper.make_node("Add", [inner, self.random.choice(self.values)], [out]),
        ]
        return helper.make_graph(nodes, side, [], [_info(out)])

    def model(self) -> onnx.ModelProto:
        weights = [helper.make_tensor(name, FLOAT, [1], [2.0]) for name in ("w", "default", "unused")]
        weights.append(helper.make_tensor("limit", FLOAT, [], [3.0]))
        inputs = [_info("x"), _info("other"), _info("default"), _info("c", TensorProto.BOOL)]
        made = [name for node in self.nodes for name in node.output if name]
        outputs = self.random.sample(made, min(2, len(made)))
        stated = [_info(name) for name in made if name not in outputs and self.random.random() < 0.85]
        twice = helper.make_function(
            "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
        )
        graph = helper.make_graph(self.nodes, "g", inputs, [_info(o) for o in outputs], weights, value_info=stated)
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[twice])

    def names(self, fewest: int) -> list[str]:
        everything = [
            *self.values,
            *(node.name for node in self.nodes),
            *(["v9999", "t3"] * (self.random.random() < 0.05)),
        ]
        return self.random.sample(everything, self.random.randint(fewest, 3))


def _outcome(model: object, begin: list[str], end: list[str], complete: bool) -> bytes | str:
    try:
        return to_bytes(cut(model, begin, end, complete=complete))  # type: ignore[arg-type]
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("few", [0, 200])  # names looked up in a table of all, and one by one
def test_a_cut_of_a_file_is_the_cut_of_the_model_in_it(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_load, "_FEW", few)
    parts = errors = narrow = 0
    for seed in range(ROUNDS):
        made = _Made(seed)
        path = written(made.model(), tmp_path)
        begin, end, complete = made.names(0), made.names(0 if seed % 4 == 0 else 1), seed % 2 == 0
        found = _outcome(path, begin, end, complete)
        assert found == _outcome(load(path), begin, end, complete), (seed, begin, end)
        parts, errors = parts + isinstance(found, bytes), errors + isinstance(found, str)
        narrow += partial_load.narrowed(path.read_bytes(), begin, end) is not None
    assert parts > ROUNDS / 4
    assert errors > ROUNDS / 10
    assert narrow > ROUNDS / 4


def test_a_beginning_that_is_an_output_of_the_model_stays_one(tmp_path: Path) -> None:
    proto = _with_types(good())
    proto.graph.output.append(_info("c"))
    path = written(proto, tmp_path)
    part = cut(path, ["c"])
    assert [v.name for v in part.graph.outputs] == ["y", "c"]
    assert to_bytes(part) == to_bytes(cut(load(path), ["c"]))


def test_only_the_nodes_and_weights_of_the_part_are_made(tmp_path: Path) -> None:
    message = partial_load.narrowed(_with_types(good()).SerializeToString(), ["c"], ["d"])
    assert message is not None
    assert [node.op_type for node in message.graph.node] == ["Mul"]
    assert [tensor.name for tensor in message.graph.initializer] == ["b"]


def test_a_part_can_be_cut_whose_weights_are_there_though_others_are_missing(tmp_path: Path) -> None:
    proto = _with_types(good())
    lost = next(t for t in proto.graph.initializer if t.name == "w")
    lost.ClearField("raw_data")
    lost.data_location = TensorProto.EXTERNAL
    lost.external_data.add(key="location", value="gone.data")
    path = written(proto, tmp_path)
    save(cut(path, ["c"], ["y"]), tmp_path / "part.onnx")
    with pytest.raises(FileError, match=r"gone\.data"):
        cut(path, ["x"], ["a"])


def test_what_is_made_twice_or_stated_twice_is_left_to_the_whole_model(tmp_path: Path) -> None:
    proto = _with_types(good())
    proto.graph.node.append(helper.make_node("Relu", ["x"], ["c"]))
    with pytest.raises(FileError, match="'c' is given to two values"):
        cut(written(proto, tmp_path), ["a"], ["d"])
    proto = _with_types(good())
    proto.graph.value_info.append(_info("c"))
    assert partial_load.narrowed(proto.SerializeToString(), ["a"], ["d"]) is None


@pytest.mark.parametrize("content", [b"\xff" * 9, b"\x3a\x7f", b"PK\x03\x04", b"\x3a\x02\x0a\x63"])
def test_what_is_no_model_is_told_as_when_it_is_opened(tmp_path: Path, content: bytes) -> None:
    path = written(content, tmp_path)
    with pytest.raises(TorchportError) as opened:
        load(path)
    with pytest.raises(TorchportError) as caught:
        cut(path, ["a"], ["b"])
    assert str(caught.value) == str(opened.value)


def test_types_that_the_file_does_not_state_are_inferred(tmp_path: Path) -> None:
    path = written(good(), tmp_path)
    assert partial_load.narrowed(path.read_bytes(), ["a"], ["d"]) is not None
    part = cut(path, ["a"], ["d"])
    assert [str(v.shape) for v in (*part.graph.inputs, *part.graph.outputs)] == ["[32,32]", "[32,32]"]
    assert to_bytes(part) == to_bytes(cut(load(path), ["a"], ["d"]))


def test_a_small_cut_of_many_nodes_takes_a_fraction_of_loading_them(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(5000)]
    stated = [_info(f"v{n}") for n in range(1, 5000)]
    graph = helper.make_graph(nodes, "g", [_info("v0")], [_info("v5000")], value_info=stated)
    path = written(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path)
    start = time.perf_counter()
    load(path)
    between = time.perf_counter()
    assert len(cut(path, ["v2000"], ["v2005"]).graph) == 5
    assert time.perf_counter() - between < (between - start) / 4


def _with_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(proto)
