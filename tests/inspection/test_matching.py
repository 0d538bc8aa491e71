"""`match` tells which node of one model is which of another, whatever they are called."""

from __future__ import annotations

import copy
import random
import time
from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from torchport.inspection.matching.matcher import Matching, match

WIDTH = 8


class Builder:
    """Nodes in a row, each marked with its number, so that a test can tell them after they were renamed."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, name: str, *shape: int) -> str:
        self.weights.append(numpy_helper.from_array(self.random.standard_normal(shape).astype(np.float32), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        number = len(self.nodes)
        name = f"{op.lower()}_{number}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"node_{name}", str(number), **attributes))
        return name

    def model(self, end: str) -> onnx.ModelProto:
        info = [helper.make_tensor_value_info(name, 1, ["batch", 4, WIDTH]) for name in ("x", end)]
        graph = helper.make_graph(self.nodes, "g", info[:1], info[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def transformer(layers: int) -> onnx.ModelProto:
    """Equal layers, each with three equal siblings: 17 nodes a layer."""
    b, h = Builder(), "x"
    for layer in range(layers):
        p = f"layer.{layer}."
        norm = b.node("LayerNormalization", h, b.weight(p + "norm", WIDTH), axis=-1)
        q, k, v = (
            b.node("Add", b.node("MatMul", norm, b.weight(p + c, WIDTH, WIDTH)), b.weight(p + c + ".bias", WIDTH))
            for c in "qkv"
        )
        scores = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1])), axis=-1)
        h = b.node("Add", h, b.node("MatMul", b.node("MatMul", scores, v), b.weight(p + "o", WIDTH, WIDTH)))
        inner = b.node("Relu", b.node("MatMul", h, b.weight(p + "up", WIDTH, WIDTH)))
        h = b.node("Add", h, b.node("MatMul", inner, b.weight(p + "down", WIDTH, WIDTH)))
    return b.model(b.node("Identity", h))


def renamed(model: onnx.ModelProto, *, weights: bool = True) -> onnx.ModelProto:
    """The same model, everything but inputs and outputs called otherwise."""
    copied = copy.deepcopy(model)
    kept = {v.name for v in (*copied.graph.input, *copied.graph.output)}
    names = {t.name: f"p{n}" for n, t in enumerate(copied.graph.initializer) if weights}
    names |= {o: f"t{n}" for n, node in enumerate(copied.graph.node) for o in node.output if o not in kept}
    for tensor in copied.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for n, node in enumerate(copied.graph.node):
        node.name = f"r{n}"
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
    return copied


def inserted(model: onnx.ModelProto, after: int) -> onnx.ModelProto:
    copied = copy.deepcopy(model)
    out, new = copied.graph.node[after].output[0], f"new_{after}"
    for node in copied.graph.node:
        node.input[:] = [new if i == out else i for i in node.input]
    copied.graph.node.insert(after + 1, helper.make_node("Tanh", [out], [new], new, "new"))
    return copied


def removed(model: onnx.ModelProto, number: int) -> onnx.ModelProto:
    copied = copy.deepcopy(model)
    gone = copied.graph.node.pop(number)
    for node in copied.graph.node:
        node.input[:] = [gone.input[0] if i == gone.output[0] else i for i in node.input]
    return copied


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """A pair of QuantizeLinear and DequantizeLinear before every input of every product."""
    copied = copy.deepcopy(model)
    nodes = list(copied.graph.node)
    del copied.graph.node[:]
    for node in nodes:
        for slot in range(2 if node.op_type == "MatMul" else 0):
            q = f"{node.name}_{slot}"
            steps = ("QuantizeLinear", node.input[slot], f"{q}_q"), ("DequantizeLinear", f"{q}_q", f"{q}_d")
            copied.graph.node.extend(helper.make_node(o, [i, "scale"], [y], y, "new") for o, i, y in steps)
            node.input[slot] = f"{q}_d"
        copied.graph.node.append(node)
    copied.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "scale"))
    return copied


def matched(a: onnx.ModelProto, b: onnx.ModelProto) -> Matching:
    return match(ir.from_proto(a), ir.from_proto(b))


def marks(nodes: list[ir.Node]) -> list[str | None]:
    return [n.doc_string for n in nodes]


def wrong(found: Matching) -> list[tuple[str | None, str | None]]:
    return [(n.doc_string, m.doc_string) for n, m in found.nodes if n.doc_string != m.doc_string]


BASE = transformer(6)  # 103 nodes
PLACES = [0, 3, 5, 40, 63, 95, 101]


@pytest.mark.parametrize("other", [BASE, renamed(BASE), renamed(BASE, weights=False)])
def test_every_node_finds_itself_whatever_it_is_called(other: onnx.ModelProto) -> None:
    found = matched(BASE, other)
    assert wrong(found) == []
    assert (len(found.nodes), found.only_a, found.only_b) == (103, [], [])
    assert marks([n for n, _ in found.nodes]) == [str(n) for n in range(103)]


def test_weights_and_inputs_are_paired_with_what_is_in_their_place() -> None:
    found = matched(BASE, renamed(BASE))
    names = {str(v.name): str(w.name) for v, w in found.values.items()}
    assert names["x"] == "x"
    assert [names[t.name] for t in BASE.graph.initializer] == [f"p{n}" for n in range(len(BASE.graph.initializer))]
    assert len(names) == 1 + len(BASE.graph.initializer) + len(BASE.graph.node)


@pytest.mark.parametrize("again", [lambda m: m, renamed], ids=["named", "renamed"])
@pytest.mark.parametrize("place", PLACES)
def test_an_inserted_node_leaves_the_others_where_they_are(place: int, again: object) -> None:
    found = matched(BASE, again(inserted(BASE, place)))  # type: ignore[operator]
    assert (wrong(found), found.only_a, marks(found.only_b)) == ([], [], ["new"])


@pytest.mark.parametrize("again", [lambda m: m, renamed], ids=["named", "renamed"])
@pytest.mark.parametrize("place", PLACES)
def test_a_removed_node_leaves_the_others_where_they_are(place: int, again: object) -> None:
    found = matched(BASE, again(removed(BASE, place)))  # type: ignore[operator]
    assert (wrong(found), marks(found.only_a), found.only_b) == ([], [str(place)], [])


@pytest.mark.parametrize("again", [lambda m: m, renamed], ids=["named", "renamed"])
def test_many_changes_leave_what_is_between_them_matched(again: object) -> None:
    other = BASE
    for place in (95, 70, 63, 40, 20, 5):
        other = inserted(other, place)
    found = matched(BASE, again(other))  # type: ignore[operator]
    assert (wrong(found), found.only_a, marks(found.only_b)) == ([], [], ["new"] * 6)


@pytest.mark.parametrize("again", [lambda m: m, renamed], ids=["named", "renamed"])
def test_a_quantized_model_matches_past_the_nodes_put_in_everywhere(again: object) -> None:
    found = matched(BASE, again(quantized(BASE)))  # type: ignore[operator]
    assert (wrong(found), found.only_a) == ([], [])
    assert {m.op_type for m in found.only_b} == {"QuantizeLinear", "DequantizeLinear"}


def test_a_removed_layer_among_equal_ones_is_told_by_its_weights() -> None:
    """The nodes of the shorter model are counted anew, so that their names are those of other nodes."""
    short = copy.deepcopy(BASE)
    layer = [short.graph.node.pop(17 * 2) for _ in range(17)]
    short.graph.node[17 * 2].input[0] = layer[0].input[0]
    for node in short.graph.node:
        node.input[:] = [layer[0].input[0] if i == layer[-1].output[0] else i for i in node.input]
    for number, node in enumerate(short.graph.node):
        node.name = f"node_{node.op_type.lower()}_{number}"
    found = matched(BASE, short)
    assert (wrong(found), marks(found.only_a), found.only_b) == ([], [str(n) for n in range(34, 51)], [])


def test_swapped_inputs_do_not_swap_the_nodes_above() -> None:
    other = copy.deepcopy(BASE)
    product = other.graph.node[8]
    product.input[:] = reversed(product.input)
    for again in (lambda m: m, lambda m: renamed(m, weights=False)):
        found = matched(BASE, again(other))
        assert (wrong(found), found.only_a, found.only_b) == ([], [], [])


def test_another_operator_in_the_same_place_is_its_partner() -> None:
    other = copy.deepcopy(BASE)
    other.graph.node[9].op_type = "Exp"
    del other.graph.node[9].attribute[:]
    found = matched(BASE, renamed(other))
    assert (wrong(found), len(found.nodes)) == ([], 103)
    why = {n.doc_string: w for n, w in found.why.items()}
    assert {n for n, w in why.items() if w not in ("structure", "numbers")} == {"9"}
    assert why["9"] == "place"


def test_what_was_fused_has_no_partner_but_its_result_has(tmp_path: object) -> None:
    onnx.save(BASE, f"{tmp_path}/a.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = f"{tmp_path}/b.onnx"
    options.log_severity_level = 4
    onnxruntime.InferenceSession(f"{tmp_path}/a.onnx", options, providers=["CPUExecutionProvider"])
    found = matched(BASE, onnx.load(f"{tmp_path}/b.onnx"))
    assert Counter(n.op_type for n in found.only_a) == {"Transpose": 6, "MatMul": 6, "Identity": 1}
    assert {m.op_type for m in found.only_b} == {"FusedMatMul"}
    assert all(n.name == m.name for n, m in found.nodes)
    products = [n.outputs[0] for n in found.only_a if n.op_type == "MatMul"]
    assert [found.values[v].name for v in products] == [v.name for v in products]
    assert not [n for n in found.only_a if n.op_type == "Transpose" and n.outputs[0] in found.values]


NESTED = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
g (float[N] x, bool c) => (float[N] y) <float[1] w = {2.0}> {
  a = Relu(x)
  b = If (c) <then_branch = t () => (t2) { t1 = Exp(a) t2 = Mul(t1, w) }, else_branch = e () => (e1) { e1 = Neg(x) }>
  d = local.f(b, a)
  y = local.f(d, b)
}
<domain: "local", opset_import: ["" : 20]> f (p, q) => (r) { s = Sin(p) r = Add(s, q) }
"""


def test_branches_and_local_functions_are_matched_inside() -> None:
    other = (
        NESTED.replace("t1", "u1")
        .replace("local.f", "local.h")
        .replace("> f (", "> h (")
        .replace("<float[1] w", "<float[1] v")
    )
    other = other.replace("u1, w", "u1, v").replace("e1 = Neg(x)", "e0 = Abs(x) e1 = Neg(e0)")
    found = match(*(ir.from_proto(onnx.parser.parse_model(t)) for t in (NESTED, other)))
    assert [n.op_type for n, _ in found.nodes] == ["Relu", "If", "Exp", "Mul", "Neg", "f", "f"]
    assert [m.op_type for m in found.only_b] == ["Abs"]
    assert {v.name: w.name for v, w in found.values.items()}["w"] == "v"
    (f, h, inside), *rest = found.functions
    assert (f.name, h.name, [n.op_type for n, _ in inside.nodes], rest) == ("f", "h", ["Sin", "Add"], [])


def test_constants_match_weights_by_the_slot_they_are_read_in() -> None:
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y)'
    stored = head + "<float[2] w = {1.0, 2.0}> { y = Add(x, w) }"
    inline = head + "{ k = Constant<value = float[2] {1.0, 2.0}>() y = Add(x, k) }"
    found = match(*(ir.from_proto(onnx.parser.parse_model(t)) for t in (stored, inline)))
    assert {v.name: w.name for v, w in found.values.items()} == {"x": "x", "w": "k", "y": "y"}
    assert (found.only_a, [m.op_type for m in found.only_b]) == ([], ["Constant"])


def test_names_of_nodes_that_neighbors_contradict_are_dropped() -> None:
    """Two branches: what they compute is called the same in both models, the nodes were counted in another order."""

    def branches(ends: str, **names: str) -> onnx.ModelProto:
        nodes = [helper.make_node(ends, ["x"], ["start"])]
        for side, name in names.items():
            steps = [("Abs", "", "start", f"{side}_in"), ("Sin", name, f"{side}_in", f"{name}_out")]
            steps.append(("Neg", "", f"{name}_out", f"{side}_end"))
            nodes += [helper.make_node(op, [i], [o], n, f"{side} {op}") for op, n, i, o in steps]
        nodes += [helper.make_node("Sub", ["left_end", "right_end"], ["last"]), helper.make_node(ends, ["last"], ["y"])]
        info = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
        return helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:]))

    found = matched(branches("Exp", left="sin_1", right="sin_2"), branches("Log", left="sin_2", right="sin_1"))
    assert {m.doc_string for n, m in found.nodes if n.doc_string == "left Sin"} == {"left Sin"}
    assert not wrong(found)


def test_names_that_were_counted_on_to_other_weights_do_not_mislead() -> None:
    """Exporters call weights by a running number: with one node more, a name means another weight."""
    other = inserted(BASE, 3)
    names = [t.name for t in other.graph.initializer]
    shifted = dict(zip(names, [*names[1:], "last"], strict=True))
    for tensor in other.graph.initializer:
        tensor.name = shifted[tensor.name]
    for node in other.graph.node:
        node.input[:] = [shifted.get(i, i) for i in node.input]
    found = matched(BASE, other)
    assert (wrong(found), found.only_a, marks(found.only_b)) == ([], [], ["new"])
    pairs = {str(v.name): str(w.name) for v, w in found.values.items() if v.is_initializer()}
    assert pairs == shifted


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same model, in which every node, tensor and weight has the name of another."""
    copied, chance = copy.deepcopy(model), random.Random(seed)
    kept = {v.name for v in (*copied.graph.input, *copied.graph.output)}
    made = [o for node in copied.graph.node for o in node.output if o not in kept]
    own = [*(t.name for t in copied.graph.initializer), *made]
    names = dict(zip(own, chance.sample(own, len(own)), strict=True))
    for tensor in copied.graph.initializer:
        tensor.name = names[tensor.name]
    called = [node.name for node in copied.graph.node]
    for node, name in zip(copied.graph.node, chance.sample(called, len(called)), strict=True):
        node.name = name
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
    return copied


def heads() -> onnx.ModelProto:
    """Four equal heads on one stem, which only their weights tell apart: what is read of them is the same too."""
    b = Builder()
    stem = b.node("Relu", "x")
    ends = [b.node("Tanh", b.node("MatMul", stem, b.weight(f"head.{n}", WIDTH, WIDTH))) for n in range(4)]
    return b.model(b.node("Sum", *ends))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", [BASE, heads()], ids=["layers", "heads"])
def test_names_that_went_over_to_other_nodes_and_weights_do_not_mislead(model: onnx.ModelProto, seed: int) -> None:
    found = matched(model, shuffled(model, seed))
    assert (wrong(found), found.only_a, found.only_b) == ([], [], [])


def test_what_weights_hold_tells_siblings_that_are_read_crosswise() -> None:
    """As in a recurrent layer of two directions, whose halves are put together in the wrong order."""
    b = Builder()
    halves = [b.node("Tanh", b.node("MatMul", "x", b.weight(f"half.{n}", WIDTH, WIDTH))) for n in range(2)]
    model = b.model(b.node("Sub", *halves))
    other = renamed(model)
    other.graph.node[-1].input[:] = reversed(other.graph.node[-1].input)
    found = matched(model, other)
    assert (wrong(found), found.only_a, found.only_b) == ([], [], [])


def test_weights_that_were_swapped_do_not_swap_the_nodes_that_kept_their_names() -> None:
    other = copy.deepcopy(BASE)
    one, two = (next(t for t in other.graph.initializer if t.name == f"layer.2.{c}") for c in "qk")
    one.raw_data, two.raw_data = two.raw_data, one.raw_data
    found = matched(BASE, other)
    assert (wrong(found), found.only_a, found.only_b) == ([], [], [])
    assert all(v.name == w.name for v, w in found.values.items())


def test_weights_in_float16_are_known_by_their_numbers() -> None:
    model = heads()
    half = renamed(model)
    for tensor in half.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    half.graph.node[-1].input[:] = reversed(half.graph.node[-1].input)
    found = matched(model, half)
    assert (wrong(found), found.only_a, found.only_b) == ([], [], [])
    assert Counter(w for n, w in found.why.items() if n.op_type == "MatMul") == {"numbers": 4}


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_find_themselves_when_renamed(seed: int) -> None:
    chance, b, values = random.Random(seed), Builder(), ["x"]
    for _ in range(60):
        reads = [chance.choice(values[-5:]) for _ in range(chance.choice([1, 2]))]
        values.append(b.node(chance.choice(["Relu", "Exp"] if len(reads) == 1 else ["Add", "Mul"]), *reads))
    model = b.model(values[-1])
    found = matched(model, renamed(model))
    assert len(found.nodes) == 60
    pairs = dict(found.nodes)
    assert all(n.op_type == m.op_type for n, m in pairs.items())
    for n, m in pairs.items():
        assert [None if (p := v.producer()) is None else pairs[p] for v in n.inputs] == [v.producer() for v in m.inputs]


def test_five_thousand_nodes_take_a_second_or_two() -> None:
    large = transformer(300)
    other = ir.from_proto(renamed(inserted(removed(large, 2000), 4000)))
    whole = ir.from_proto(large)
    start = time.process_time()
    found = match(whole, other)
    assert time.process_time() - start < 5  # generous: other work may share the machine
    assert (wrong(found), marks(found.only_a), marks(found.only_b)) == ([], ["2000"], ["new"])
