"""`tp.graph.diff` says what differs between two models: each change as exactly that change."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from torchport.errors import FileError
from torchport.files.onnx_files import load, save
from torchport.inspection.diff import weights as content
from torchport.inspection.diff.diff import diff
from torchport.inspection.diff.result import Difference, text
from torchport.inspection.diff.weights import apart, same_content

MODEL = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
g (float[N,4] x, float[N,4] z, bool c) => (float[N,4] y, float[N,4] e)
<float[4] w = {1.0, 2.0, 3.0, 4.0}, float[4] v = {5.0, 6.0, 7.0, 8.0}> {
  a = LeakyRelu<alpha = 0.5>(x)
  b = Mul(a, w)
  d = Sub(b, z)
  e = If (c) <then_branch = t () => (t2) { t1 = Exp(d) t2 = Mul(t1, v) }, else_branch = f () => (f1) { f1 = Neg(d) }>
  h = local.f(e, d)
  k = Constant<value = float[4] {1.0, 1.0, 1.0, 1.0}>()
  i = Add(h, k)
  y = Tanh(i)
}
<domain: "local", opset_import: ["" : 20]> f (p, q) => (r) { s = Sin(p) r = Add(s, q) }
"""


def parsed(source: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(source))


def edited(*edits: tuple[str, str]) -> Difference:
    """What differs when the model's source is changed so."""
    source = MODEL
    for before, after in edits:
        assert before in source
        source = source.replace(before, after)
    return diff(parsed(MODEL), parsed(source))


def counts(d: Difference) -> dict[str, int]:
    """How many changes there are of each kind, those of names aside."""
    found = {
        "header": d.header,
        "interface": d.interface,
        "changed": d.nodes.changed,
        "added": d.nodes.added,
        "removed": d.nodes.removed,
        "weights changed": d.weights.changed,
        "weights added": d.weights.added,
        "weights removed": d.weights.removed,
        "weights moved": d.weights.moved,
        "functions": d.functions,
    }
    return {kind: len(changes) for kind, changes in found.items() if changes}


def test_a_model_is_the_same_as_itself() -> None:
    model = parsed(MODEL)
    for other in (model, parsed(MODEL)):
        found = diff(model, other)
        assert found.same
        assert not found.only_names
        assert str(found) == "a and b are the same: 11 nodes, 2 weights"


def test_the_order_of_nodes_and_attributes_that_say_the_default_are_no_difference() -> None:
    assert edited(("  h = local.f(e, d)\n", ""), ("1.0, 1.0}>()\n", "1.0, 1.0}>()\n  h = local.f(e, d)\n")).same
    source = MODEL.replace("alpha = 0.5", "alpha = 0.01")
    assert diff(parsed(source), parsed(source.replace("<alpha = 0.01>", ""))).same


def test_another_operator_is_told_as_such() -> None:
    found = edited(("Tanh(i)", "Sigmoid(i)"))
    assert counts(found) == {"changed": 1}
    change = found.nodes.changed[0]
    assert (change.name, change.operator, change.operator_after) == ("y", "Tanh", "Sigmoid")
    assert "changed  y (Tanh): operator Tanh → Sigmoid" in str(found)


def test_an_attribute_is_told_before_and_after() -> None:
    found = edited(("alpha = 0.5", "alpha = 0.25"))
    assert counts(found) == {"changed": 1}
    attribute = found.nodes.changed[0].attributes[0]
    assert (attribute.name, attribute.before, attribute.after) == ("alpha", "0.5", "0.25")
    gone = edited(("<alpha = 0.5>", "")).nodes.changed[0].attributes[0]
    assert (gone.before, gone.after) == ("0.5", "")


def test_a_rewired_input_is_told_by_its_slot() -> None:
    found = edited(("Sub(b, z)", "Sub(z, b)"))
    assert counts(found) == {"changed": 1}
    slots = [(r.slot, r.before, r.after) for r in found.nodes.changed[0].inputs]
    assert slots == [("input 0", "b", "z"), ("input 1", "z", "b")]
    assert edited(("Add(h, k)", "Add(d, k)")).nodes.changed[0].inputs[0].after == "d"


def test_weights_swapped_between_nodes_are_rewired_not_changed() -> None:
    found = edited(("Mul(a, w)", "Mul(a, v)"), ("Mul(t1, v)", "Mul(t1, w)"))
    assert counts(found) == {"changed": 2}
    assert [(c.name, c.inputs[0].before, c.inputs[0].after) for c in found.nodes.changed] == [
        ("b", "w", "v"),
        ("t2", "v", "w"),
    ]


def test_an_added_node_tells_what_it_reads_and_who_reads_it() -> None:
    found = edited(("Sub(b, z)", "Sub(n, z)"), ("  d =", "  n = Abs(b)\n  d ="))
    assert counts(found) == {"added": 1}
    node = found.nodes.added[0]
    assert (node.name, node.operator, node.reads, node.makes, node.read_by) == ("n", "Abs", ("b",), ("n",), ("d",))
    assert (found.nodes.before, found.nodes.after) == (11, 12)


def test_a_removed_node_is_told_with_its_weight() -> None:
    found = edited(("  b = Mul(a, w)\n", ""), ("Sub(b", "Sub(a"), ("float[4] w = {1.0, 2.0, 3.0, 4.0}, ", ""))
    assert counts(found) == {"removed": 1, "weights removed": 1}
    assert (found.nodes.removed[0].name, found.weights.removed[0].type) == ("b", "float32[4]")


def test_changes_inside_a_branch_say_where_they_are() -> None:
    found = edited(("t1 = Exp(d)", "t1 = Sqrt(d)"))
    assert counts(found) == {"changed": 1}
    assert found.nodes.changed[0].inside == "If 'e'"
    found = edited(("f1 = Neg(d)", "f0 = Neg(d) f1 = Abs(f0)"))
    assert counts(found) == {"added": 1}
    assert found.nodes.added[0].inside == "If 'e'"
    found = edited(("=> (t2)", "=> (t1)"))
    assert [(r.slot, r.before, r.after) for r in found.nodes.changed[0].inputs] == [
        ("then_branch output 0", "t2", "t1")
    ]


def test_a_changed_weight_tells_how_far_it_moved() -> None:
    found = edited(("{1.0, 2.0, 3.0, 4.0}", "{1.0, 2.5, 3.0, 4.0}"))
    assert counts(found) == {"weights changed": 1}
    far = found.weights.changed[0].apart
    assert far is not None
    assert (far.count, far.differ, far.max_abs, far.mean_abs, far.relative) == (4, 1, 0.5, 0.125, 0.125)
    assert far.cosine == pytest.approx(31 / math.sqrt(30 * 32.25))


def test_weights_of_another_shape_dtype_or_name_are_told_as_that() -> None:
    found = edited(("float[4] w = {1.0, 2.0, 3.0, 4.0}", "float[1] w = {1.0}"))
    assert counts(found) == {"weights changed": 1}
    change = found.weights.changed[0]
    assert (change.type, change.type_after, change.apart) == ("float32[4]", "float32[1]", None)
    found = edited(("float[4] w =", "double[4] w ="))
    assert [(c.type, c.type_after) for c in found.weights.changed] == [("float32[4]", "float64[4]")]
    found = edited(("float[4] w", "float[4] other"), ("Mul(a, w)", "Mul(a, other)"))
    assert found.only_names
    assert [(r.before, r.after) for r in found.weights.renamed] == [("w", "other")]


def test_a_weight_that_nobody_reads_is_told_by_its_numbers() -> None:
    unread = ("float[4] w =", "float[4] spare = {9.0, 8.0, 7.0, 6.0}, float[4] w =")
    source = MODEL.replace(*unread)
    found = diff(parsed(source), parsed(source.replace("spare", "extra")))
    assert [(r.before, r.after) for r in found.weights.renamed] == [("spare", "extra")]
    found = diff(parsed(source), parsed(source.replace("spare = {9.0", "extra = {9.5")))
    assert counts(found) == {"weights added": 1, "weights removed": 1}


def test_a_constant_that_became_a_weight_only_moved() -> None:
    found = edited(
        ("  k = Constant<value = float[4] {1.0, 1.0, 1.0, 1.0}>()\n", ""),
        ("8.0}>", "8.0}, float[4] k = {1.0, 1.0, 1.0, 1.0}>"),
    )
    assert counts(found) == {"weights moved": 1}
    assert not found.same
    assert "1 constant moved" in str(found)


def test_the_numbers_of_a_constant_are_compared() -> None:
    change = edited(("{1.0, 1.0, 1.0, 1.0}", "{1.0, 1.0, 1.0, 3.0}")).nodes.changed[0].attributes[0]
    assert (change.before, change.after) == ("float32[4] [1.0, 1.0, 1.0, 1.0]", "float32[4] [1.0, 1.0, 1.0, 3.0]")
    assert change.apart is not None
    assert (change.apart.differ, change.apart.max_abs) == (1, 2.0)


def test_the_interface_is_compared_port_by_port() -> None:
    def ports(*edits: tuple[str, str]) -> list[tuple[str, str, str, str, str]]:
        found = edited(*edits)
        assert set(counts(found)) <= {"interface", "changed"}
        return [(c.kind, c.name, c.what, c.before, c.after) for c in found.interface]

    assert ports(("[N,4] x", "[M,4] x")) == [("input", "x", "shape", "[N,4]", "[M,4]")]
    assert ports(("float[N,4] x", "float16[N,4] x")) == [("input", "x", "dtype", "float32", "float16")]
    assert ports(("[N,4] x", "[N,4] image"), ("(x)", "(image)")) == [("input", "x", "renamed", "x", "image")]
    assert ports(("bool c)", "bool c, float u)")) == [("input", "u", "added", "", "float32[]")]
    assert ports((", float[N,4] e)", ")")) == [("output", "e", "removed", "float32[N,4]", "")]
    swapped = ports(("float[N,4] x, float[N,4] z", "float[N,4] z, float[N,4] x"))
    assert swapped == [("input", "", "order", "x, z, c", "z, x, c")]
    assert ports(("y = Tanh(i)", "out = Tanh(i)"), ("[N,4] y", "[N,4] out")) == [("output", "y", "renamed", "y", "out")]


def test_an_output_made_by_another_node_is_told() -> None:
    found = edited(
        ("  e = If", "  u = If"),
        ("f(e, d)", "f(u, d)"),
        ("d = Sub(b, z)", "e = Sub(b, z)"),
        ("Exp(d)", "Exp(e)"),
        ("Neg(d)", "Neg(e)"),
        ("(u, d)", "(u, e)"),
    )
    assert counts(found) == {"interface": 1}
    change = found.interface[0]
    assert (change.name, change.what, change.before, change.after) == ("e", "source", "If 'e'", "Sub 'e'")


def test_the_header_is_compared() -> None:
    other = onnx.parser.parse_model(MODEL)
    other.ir_version = 9
    other.opset_import[0].version = 19
    other.producer_name = "someone"
    helper.set_model_props(other, {"license": "MIT"})
    found = diff(parsed(MODEL), ir.from_proto(other))
    assert [(c.what, c.before, c.after) for c in found.header] == [
        ("IR version", "10", "9"),
        ("opset ai.onnx", "20", "19"),
        ("producer name", "", "someone"),
        ("metadata license", "", "MIT"),
    ]
    assert counts(found) == {"header": 4}


def test_local_functions_are_compared_inside() -> None:
    found = edited(("s = Sin(p)", "s = Cos(p)"))
    assert counts(found) == {"functions": 1}
    function = found.functions[0]
    assert (function.name, function.what, function.nodes.changed[0].operator_after) == ("local::f", "changed", "Cos")
    found = edited(("> f (", "> other ("), ("local.f", "local.other"))
    assert found.only_names
    assert [(f.what, f.name, f.name_after) for f in found.functions] == [("renamed", "local::f", "local::other")]
    found = edited(("h = local.f(e, d)", "h = Add(e, d)"))
    assert [c.operator_after for c in found.nodes.changed] == ["Add"]
    without = MODEL[: MODEL.index('<domain: "local"')].replace("local.f(", "local.g(")
    assert [(f.what, f.name) for f in diff(parsed(MODEL), parsed(without)).functions] == [("removed", "local::f")]


def test_when_all_is_renamed_one_line_says_so() -> None:
    other = onnx.parser.parse_model(MODEL)
    base = copy.deepcopy(other)
    for which, model in (("old", base), ("new", other)):
        for number, node in enumerate(model.graph.node):
            node.name = f"{which}{number}"
        for attribute in model.graph.node[3].attribute:
            for inner in attribute.g.node:
                inner.name = f"{which}_{inner.op_type}"
    found = diff(ir.from_proto(base), ir.from_proto(other))
    assert found.only_names
    assert len(found.nodes.renamed) == 11
    assert str(found).splitlines() == [
        "a → b",
        "  only names differ",
        "",
        "nodes: 11",
        "  renamed  all 11 nodes, such as old0 → new0",
    ]
    assert text(found, everything=True).count("→ new") == 11


# --- random graphs, each with one change ------------------------------------------------------------------------------


def dag(seed: int) -> onnx.ModelProto:
    chance, values, nodes, weights = random.Random(seed), ["x", "z"], [], []
    for n in range(40):
        one, two = chance.choice(values[-6:]), chance.choice(values[-8:])
        kind = chance.random()
        if kind < 0.4:
            nodes.append(helper.make_node(chance.choice(["Relu", "Exp", "Neg"]), [one], [f"v{n}"]))
        elif kind < 0.6:
            weights.append(numpy_helper.from_array(np.full(4, n, np.float32), f"w{n}"))
            nodes.append(helper.make_node(chance.choice(["Add", "Sub"]), [one, f"w{n}"], [f"v{n}"]))
        elif kind < 0.7:
            nodes.append(helper.make_node("LeakyRelu", [one], [f"v{n}"], alpha=chance.choice([0.1, 0.2])))
        else:
            nodes.append(helper.make_node(chance.choice(["Add", "Sub", "Div"]), [one, two], [f"v{n}"]))
        nodes[-1].name = f"n{n}"
        values.append(f"v{n}")
    read = {i for node in nodes for i in node.input}
    info = [helper.make_tensor_value_info(v, 1, [4]) for v in ("x", "z", *(v for v in values[2:] if v not in read))]
    graph = helper.make_graph(nodes, "g", info[:2], info[2:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def change_operator(model: onnx.ModelProto, chance: random.Random) -> None:
    node = chance.choice(model.graph.node)
    del node.attribute[:]
    node.op_type = "Sum"


def change_attribute(model: onnx.ModelProto, chance: random.Random) -> None:
    chance.choice([n for n in model.graph.node if n.op_type == "LeakyRelu"]).attribute[0].f = 0.7


def insert(model: onnx.ModelProto, chance: random.Random) -> None:
    place = chance.randrange(len(model.graph.node))
    reader = model.graph.node[place]
    slot = chance.randrange(len(reader.input))
    node = helper.make_node("Sigmoid", [reader.input[slot]], ["new"], "new")
    reader.input[slot] = "new"
    model.graph.node.insert(place, node)


def remove(model: onnx.ModelProto, chance: random.Random) -> None:
    inner = [n for n in model.graph.node if n.output[0] not in {o.name for o in model.graph.output}]
    gone = chance.choice([n for n in inner if not any(i.startswith("w") for i in n.input)])
    model.graph.node.remove(gone)
    for node in model.graph.node:
        node.input[:] = [gone.input[0] if i == gone.output[0] else i for i in node.input]


def swap(model: onnx.ModelProto, chance: random.Random) -> None:
    node = chance.choice([n for n in model.graph.node if len(set(n.input)) == 2])
    node.input[:] = list(node.input)[::-1]


def change_numbers(model: onnx.ModelProto, chance: random.Random) -> None:
    tensor = chance.choice(model.graph.initializer)
    tensor.CopyFrom(numpy_helper.from_array(np.float32([1, 2, 3, 99]), tensor.name))


def rename(model: onnx.ModelProto) -> None:
    """All but the interface; weights get names that other weights had."""
    kept = {v.name for v in (*model.graph.input, *model.graph.output)}
    names = {t.name: f"w{n}" for n, t in enumerate(model.graph.initializer)}
    names |= {o: f"t{n}" for n, node in enumerate(model.graph.node) for o in node.output if o not in kept}
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    for n, node in enumerate(model.graph.node):
        node.name = f"r{n}"
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]


KINDS: list[tuple[Callable[[onnx.ModelProto, random.Random], None], dict[str, int]]] = [
    (change_operator, {"changed": 1}),
    (change_attribute, {"changed": 1}),
    (insert, {"added": 1}),
    (remove, {"removed": 1}),
    (swap, {"changed": 1}),
    (change_numbers, {"weights changed": 1}),
]


@pytest.mark.parametrize("called", ["the same", "otherwise"])
@pytest.mark.parametrize(("change", "expected"), KINDS, ids=lambda k: getattr(k, "__name__", ""))
def test_one_change_of_a_random_graph_is_reported_as_exactly_that(
    change: Callable[[onnx.ModelProto, random.Random], None], expected: dict[str, int], called: str
) -> None:
    turned = {"added": "removed", "removed": "added"}
    for seed in range(6):
        model = dag(seed)
        other = copy.deepcopy(model)
        change(other, random.Random(seed))
        if called == "otherwise":
            rename(other)
        a, b = ir.from_proto(model), ir.from_proto(other)
        assert counts(diff(a, b)) == expected
        assert counts(diff(b, a)) == {turned.get(kind, kind): n for kind, n in expected.items()}


def test_a_random_graph_that_is_only_renamed_has_only_names_to_tell() -> None:
    for seed in range(6):
        other = dag(seed)
        rename(other)
        found = diff(ir.from_proto(dag(seed)), ir.from_proto(other))
        assert found.only_names
        assert len(found.nodes.renamed) == 40


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_constants_that_took_the_names_of_others_with_the_same_numbers_are_only_renamed() -> None:
    """Exporters count names up: with all names one further, a constant has the name of another that holds the same."""
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[N,4] x) => (float[N,4] y) {'
    steps = [f"k{n} = Constant<value = int64[1] {{{value}}}>()" for n, value in enumerate([0, 0, 3, 1])]
    body = " ".join([*steps, "y = Slice(x, k0, k2, k1, k3) }"])
    source, further = head + body, head + re.sub(r"k(\d)", lambda k: f"k{int(k[1]) + 1}", body)
    d = diff(parsed(source), parsed(further))
    assert counts(d) == {}
    assert "only names differ" in text(d)


def test_numbers_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_PIECE", 7)
    a = np.arange(100, dtype=np.float32)
    b = a.copy()
    b[[3, 50, 99]] += [1, -2, 3]
    far = apart(ir.tensor(a), ir.tensor(b))
    assert far is not None
    assert (far.count, far.differ, far.max_abs) == (100, 3, 3.0)
    assert far.mean_abs == pytest.approx(0.06)
    assert far.relative == pytest.approx(3 / 99)
    assert far.cosine == pytest.approx(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    assert same_content(ir.tensor(a), ir.tensor(a.copy()))
    assert not same_content(ir.tensor(a), ir.tensor(b))


def test_nan_is_the_same_as_nan_and_infinitely_far_from_a_number() -> None:
    a = ir.tensor(np.float32([math.nan, 1, math.inf]))
    assert same_content(a, ir.tensor(np.float32([math.nan, 1, math.inf])))
    far = apart(a, ir.tensor(np.float32([math.nan, 1, 2])))
    assert far is not None
    assert (far.differ, far.max_abs) == (1, math.inf)


@pytest.mark.parametrize("dtype", [ir.DataType.BFLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.INT4, ir.DataType.BOOL])
def test_numbers_of_narrow_dtypes_are_compared(dtype: ir.DataType) -> None:
    a, b = (ir.tensor(np.array(n).astype(dtype.numpy()), dtype=dtype) for n in ([1, 0, 1], [1, 1, 1]))
    far = apart(a, b)
    assert far is not None
    assert (far.differ, far.max_abs, same_content(a, b), same_content(a, a)) == (1, 1.0, False, True)


def big(folder: Path, name: str, number: float) -> Path:
    tensor = numpy_helper.from_array(np.full(4096, number, np.float32), "w")
    info = [helper.make_tensor_value_info(v, 1, [4096]) for v in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [tensor])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    return save(model, folder / name, external=True)


def test_weights_at_the_same_spot_of_the_same_file_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = big(tmp_path, "a.onnx", 1.0)
    (tmp_path / "b.onnx").write_bytes(path.read_bytes())
    monkeypatch.setattr(content, "_numbers", lambda tensor: pytest.fail("read"))
    assert diff(path, tmp_path / "b.onnx").same


def test_weights_in_data_files_are_compared_and_not_left_mapped(tmp_path: Path) -> None:
    a, b = load(big(tmp_path, "a.onnx", 1.0)), load(big(tmp_path, "b.onnx", 1.5))
    found = diff(a, b)
    assert counts(found) == {"weights changed": 1}
    assert found.weights.changed[0].apart is not None
    assert (found.weights.changed[0].apart.differ, found.weights.changed[0].apart.max_abs) == (4096, 0.5)
    assert [m.graph.initializers["w"].const_value.raw for m in (a, b)] == [None, None]  # type: ignore[union-attr]


def test_a_data_file_that_vanished_meanwhile_is_named(tmp_path: Path) -> None:
    a, b = load(big(tmp_path, "a.onnx", 1.0)), load(big(tmp_path, "b.onnx", 1.5))
    next(tmp_path.glob("b.*.data")).unlink()
    with pytest.raises(FileError, match="the numbers of 'w' cannot be read") as caught:
        diff(a, b)
    assert str(caught.value.where).endswith(".data")


# --- text -------------------------------------------------------------------------------------------------------------


def test_the_text_fits_eighty_columns_and_shortens_long_lists() -> None:
    chain = [f"  {'long_name_' * 9}{n} = Relu({'long_name_' * 9}{n - 1 if n else 'x'})" for n in range(30)]
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[4] x) => (float[4] y) {\n'
    short = parsed(head + "  y = Relu(x)\n}")
    source = head + "\n".join(chain).replace(f"{'long_name_' * 9}x", "x") + f"\n  y = Relu({'long_name_' * 9}29)\n}}"
    found = diff(short, parsed(source))
    assert counts(found) == {"added": 30}
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1] == "  30 nodes added"
    assert lines[-1].strip() == "and 20 more (--all shows them)"
    assert sum("(Relu)" in line for line in text(found, everything=True).splitlines()) >= 30
