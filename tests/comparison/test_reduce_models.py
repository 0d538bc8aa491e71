"""The smallest part that fails: how many checks it takes, and that it is the right part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from torchport.comparison.reduce import Reduced, reduce
from torchport.comparison.reduce_checks import Command, Crash, Numbers, load_arrays
from torchport.comparison.tensor_cache import Recorded
from torchport.engines.session import open_session
from torchport.errors import EngineError, InputError, OptionError
from torchport.inputs.samples import save_arrays

FLOAT = TensorProto.FLOAT
X = {"x": np.random.default_rng(0).random((4, 4), np.float32)}


def model_of(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray] | None = None, *, outputs: tuple[str, ...] = ("y",)
) -> ir.Model:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    info = [helper.make_tensor_value_info(name, FLOAT, [4, 4]) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def residual(count: int, faulty: dict[int, str] | None = None) -> ir.Model:
    """`count` nodes of which each fourth joins a skip connection; nodes named in `faulty` have another operator."""
    nodes, here, skip = [], "x", "x"
    for i in range(count):
        out = "y" if i == count - 1 else f"t{i}"
        op = (faulty or {}).get(i, "Mean" if i % 4 == 3 else "Identity")
        inputs = [here, skip] if op == "Mean" else [here]
        nodes.append(helper.make_node(op, inputs, [out], name=f"n{i}"))
        here, skip = out, out if i % 4 == 3 else skip
    return model_of(nodes)


def encoder(blocks: int, scale_of: Callable[[int], float] = lambda block: 1.0) -> ir.Model:
    """Blocks of two branches and a skip connection, ten nodes each, constants among them."""
    rng = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    here = "x"
    for b in range(blocks):
        weights |= {f"w{b}{k}": rng.normal(0, 0.5, (4, 4)).astype(np.float32) for k in "qkv"}
        scale = numpy_helper.from_array(np.float32(scale_of(b)))
        nodes.append(helper.make_node("Constant", [], [f"c{b}"], name=f"const{b}", value=scale))
        for k in "qkv":
            nodes.append(helper.make_node("MatMul", [here, f"w{b}{k}"], [f"{k}{b}"], name=f"{k}{b}"))
        out = "y" if b == blocks - 1 else f"o{b}"
        for op, inputs, name in (
            ("Transpose", [f"k{b}"], f"kt{b}"),
            ("MatMul", [f"q{b}", f"kt{b}"], f"score{b}"),
            ("Mul", [f"score{b}", f"c{b}"], f"scaled{b}"),
            ("Softmax", [f"scaled{b}"], f"soft{b}"),
            ("MatMul", [f"soft{b}", f"v{b}"], f"mix{b}"),
            ("Add", [f"mix{b}", here], out),
        ):
            nodes.append(helper.make_node(op, inputs, [name], name=f"{name}_node"))
        here = out
    return model_of(nodes, weights)


def has(*ops: str) -> Callable[[ir.Model], bool]:
    return lambda model: set(ops) <= {n.op_type for n in model.graph}


def against(good: ir.Model, bad: ir.Model, **rest: Any) -> Reduced:
    recorded = Recorded(good, X)
    return reduce(bad, Numbers("onnxruntime", against=recorded), inputs=recorded, **rest)


@pytest.mark.parametrize("place", [0, 1, 333, 500, 998])
def test_one_faulty_node_of_a_thousand_takes_at_most_twelve_checks(place: int) -> None:
    found = reduce(residual(1000, {place: "Exp"}), has("Exp"))
    assert found.names == (f"n{place}",)
    assert found.nodes == 1
    assert found.checks <= 12


def test_numbers_find_the_one_node_that_differs_from_another_model() -> None:
    found = against(residual(1000), residual(1000, {617: "Exp"}))
    assert (found.names, found.nodes, found.whole) == (("n617",), 1, 1000)
    assert found.checks <= 12
    np.testing.assert_allclose(found.inputs["t616"], X["x"], rtol=1e-6)


def test_a_changed_constant_is_found_in_an_encoder_and_is_no_node_of_the_part() -> None:
    found = against(encoder(12), encoder(12, lambda block: 1.5 if block == 7 else 1.0))
    assert found.names == ("scaled7_node",)
    assert [n.op_type for n in found.model.graph] == ["Mul"]
    assert found.checks <= 9  # 108 nodes without the constants


def test_a_swapped_input_is_found_though_the_reference_needs_other_tensors_there() -> None:
    bad = encoder(6)
    node = next(n for n in bad.graph if n.name == "score3_node")
    node.replace_input_with(0, next(n for n in bad.graph if n.name == "v3").outputs[0])
    assert against(encoder(6), bad).names == ("score3_node",)


def test_a_changed_weight_is_found() -> None:
    bad = encoder(6)
    weight = bad.graph.initializers["w4k"]
    weight.const_value = ir.tensor(weight.const_value.numpy() + np.float32(0.5), name="w4k")
    assert against(encoder(6), bad).names == ("k4",)


def test_two_nodes_that_fail_only_together_are_both_kept_and_what_is_between_is_not() -> None:
    found = reduce(residual(64, {10: "Exp", 50: "Cos"}), has("Exp", "Cos"))
    assert found.names == ("n10", "n50")
    assert found.nodes == 2
    assert found.inputs == {}


def test_two_nodes_side_by_side_in_different_halves_are_found_together() -> None:
    found = reduce(residual(64, {31: "Exp", 32: "Cos"}), has("Exp", "Cos"))
    assert found.names == ("n31", "n32")


def test_each_of_several_faults_is_listed_when_all_are_asked_for() -> None:
    faulty = residual(200, {20: "Exp", 121: "Exp", 122: "Exp"})
    found = reduce(faulty, has("Exp"), all_parts=True)
    assert found.others is True
    assert [p.names for p in (found, *found.more)] == [("n20",), ("n121",), ("n122",)]
    first = reduce(faulty, has("Exp"))
    assert (first.names, first.others, first.more) == (("n20",), None, ())


def test_a_single_fault_leaves_a_rest_that_passes() -> None:
    found = reduce(residual(40, {20: "Exp"}), has("Exp"), all_parts=True)
    assert (found.others, found.more) == (False, ())


def test_a_search_out_of_checks_gives_the_smallest_part_so_far() -> None:
    found = reduce(residual(1000, {100: "Exp"}), has("Exp"), most_checks=4)
    assert (found.checks, found.finished) == (4, False)
    assert found.nodes == 125
    assert "n100" in found.names


def test_branches_stay_whole_and_get_what_they_use_from_outside() -> None:
    inner = helper.make_graph(
        [helper.make_node("Exp", ["b"], ["e"])], "then", [], [helper.make_tensor_value_info("e", FLOAT, [4, 4])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["f"])], "else", [], [helper.make_tensor_value_info("f", FLOAT, [4, 4])]
    )
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="a"),
        helper.make_node("Neg", ["a"], ["b"], name="b"),
        helper.make_node("If", ["yes"], ["c"], name="if", then_branch=inner, else_branch=other),
        helper.make_node("Identity", ["c"], ["y"], name="d"),
    ]
    found = reduce(model_of(nodes, {"yes": np.array(True)}), has("If"), inputs=None)
    assert found.names == ("if",)
    assert [v.name for v in found.model.graph.inputs] == ["b"]


def test_a_sequence_is_not_cut() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="a"),
        helper.make_node("SplitToSequence", ["a"], ["s"], name="split", axis=0),
        helper.make_node("ConcatFromSequence", ["s"], ["b"], name="join", axis=0),
        helper.make_node("Identity", ["b"], ["y"], name="z"),
    ]
    recorded = Recorded(model_of(nodes), X)
    found = reduce(recorded.model, lambda model, feeds: has("SplitToSequence")(model), inputs=recorded)
    assert found.names == ("split", "join")
    np.testing.assert_array_equal(found.inputs["a"], X["x"])


def test_local_functions_come_along_and_stale_shapes_do_not_matter() -> None:
    model = residual(8, {5: "Exp"})
    value = ir.Value(name="u")
    body = ir.node("Exp", [value], name="inner")
    body.outputs[0].name = "v"
    graph = ir.Graph([value], body.outputs, nodes=[body], opset_imports={"": 20})
    model.functions[("mine", "Twice", "")] = ir.Function("mine", "Twice", "", graph=graph, attributes=[])
    node = next(n for n in model.graph if n.name == "n5")
    node.domain, node.op_type = "mine", "Twice"
    stale = next(n for n in model.graph if n.name == "n4").outputs[0]
    stale.shape, stale.type = ir.Shape([7, 7]), ir.TensorType(ir.DataType.FLOAT)
    recorded = Recorded(model, X)

    def fails(part: ir.Model, feeds: dict[str, np.ndarray]) -> bool:
        outputs = Numbers("onnxruntime", against="onnxruntime").expected(part, feeds)
        return any((a > 1.5).any() for a in outputs.values())

    found = reduce(model, fails, inputs=recorded)
    assert found.names == ("n5",)
    assert list(found.model.functions) == [("mine", "Twice", "")]
    assert found.model.graph.inputs[0].shape == ir.Shape([4, 4])


def test_weights_are_shared_not_copied() -> None:
    model = encoder(3)
    found = reduce(model, lambda part: any(n.name == "v1" for n in part.graph))
    assert found.names == ("v1",)
    assert found.model.graph.initializers["w1v"].const_value is model.graph.initializers["w1v"].const_value


def test_a_dequantized_weight_stays_a_weight() -> None:
    weights = {"q": np.arange(16, dtype=np.int8).reshape(4, 4), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="a"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], name="dq"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="mm"),
        helper.make_node("Identity", ["b"], ["y"], name="z"),
    ]
    found = reduce(model_of(nodes, weights), has("MatMul"))
    assert (found.names, found.nodes) == (("dq", "mm"), 2)
    assert [v.name for v in found.model.graph.inputs] == ["a"]


def test_a_half_precision_model_is_reduced_against_its_original() -> None:
    def mix(dtype: int, scale: float) -> ir.Model:
        cast = [helper.make_node("Cast", ["x"], ["h"], name="down", to=dtype)]
        nodes = [helper.make_node("Mul", ["h" if i == 0 else f"m{i - 1}", f"s{i}"], [f"m{i}"], name=f"mul{i}")
                 for i in range(8)]  # fmt: skip
        up = [helper.make_node("Cast", ["m7"], ["y"], name="up", to=FLOAT)]
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        weights = {f"s{i}": np.array(scale if i == 5 else 1.01, kind) for i in range(8)}
        return model_of(cast + nodes + up, weights)

    assert against(mix(FLOAT, 1.01), mix(TensorProto.FLOAT16, 1.5)).names == ("mul5",)
    with pytest.raises(InputError, match="nothing to reduce"):
        against(mix(FLOAT, 1.01), mix(TensorProto.FLOAT16, 1.01))


def test_a_check_that_passes_on_the_whole_model_is_said() -> None:
    with pytest.raises(InputError, match="passes on the whole model: there is nothing to reduce"):
        reduce(residual(8), has("Exp"))


def test_a_check_that_fails_on_every_model_is_said() -> None:
    with pytest.raises(OptionError, match="fails on every model"):
        reduce(residual(64), lambda model: True)


def test_an_engine_that_refuses_a_part_is_another_fault() -> None:
    said: list[str] = []

    def fails(model: ir.Model) -> bool:
        if len(model.graph) < 8 and not has("Exp")(model):
            raise EngineError("no kernel")
        return has("Exp")(model)

    assert reduce(residual(32, {30: "Exp"}), fails, progress=said.append).names == ("n30",)
    assert any("another fault, not counted: no kernel" in line for line in said)


@pytest.mark.parametrize("place", [0, 13, 30])
def test_a_model_that_no_engine_runs_to_its_end_is_reduced_to_where_it_stops(place: int) -> None:
    model = residual(32)
    node = next(n for n in model.graph if n.name == f"n{place}")
    index = ir.Value(name="i", type=ir.TensorType(ir.DataType.INT64), const_value=ir.tensor([0, 1, 2, 9], name="i"))
    model.graph.register_initializer(index)
    bad = ir.node("Gather", [node.inputs[0], index], name="bad")
    bad.outputs[0].name = "gathered"
    model.graph.insert_before(node, bad)
    node.replace_input_with(0, bad.outputs[0])

    def fails(part: ir.Model, feeds: dict[str, np.ndarray]) -> bool:
        try:
            open_session(part).run(feeds)
        except EngineError as error:
            return "indices element out of data bounds" in error.what
        return False

    assert reduce(model, fails, inputs=X).names == ("bad",)


def test_an_engine_that_refuses_the_whole_model_is_no_verdict() -> None:
    def fails(model: ir.Model) -> bool:
        raise EngineError("no kernel")

    with pytest.raises(EngineError, match="no kernel"):
        reduce(residual(8), fails)


@pytest.mark.parametrize(
    ("given", "message"), [({}, "input 'x' is missing"), ({**X, "z": X["x"]}, "there is no input 'z'")]
)
def test_inputs_that_do_not_fit_are_named(given: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        reduce(residual(8), lambda model, feeds: True, inputs=given)


def test_an_output_the_other_model_does_not_have_is_named() -> None:
    other = model_of([helper.make_node("Identity", ["x"], ["z"], name="n")], outputs=("z",))
    with pytest.raises(InputError, match="no tensor 'y'"):
        against(other, residual(8))


def test_tensors_behind_an_operator_of_another_domain_can_be_cut_at() -> None:
    """ONNX's inference knows nothing of com.microsoft: the engine does."""
    model = residual(12, {3: "FastGelu"})
    next(n for n in model.graph if n.name == "n3").domain = "com.microsoft"
    model.graph.opset_imports["com.microsoft"] = 1
    recorded = Recorded(model, X)
    found = reduce(model, lambda part, feeds: any(n.name == "n8" for n in part.graph), inputs=recorded)
    assert found.names == ("n8",)
    assert found.inputs["t7"].shape == (4, 4)


def test_arrays_of_any_name_come_back_from_a_file(tmp_path: Path) -> None:
    arrays = {"file": X["x"], "/layer/Relu:0": np.arange(3), "allow_pickle": np.float32(2)}
    save_arrays(tmp_path / "a.npz", arrays)
    back = load_arrays(tmp_path / "a.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)


def script(folder: Path, text: str) -> str:
    path = folder / "check me.py"
    path.write_text(f"import sys, zipfile\n{text}\n")
    return f"{sys.executable} '{path}'"


def test_a_command_sees_the_model_and_its_inputs(tmp_path: Path) -> None:
    text = "names = zipfile.ZipFile(sys.argv[2]).namelist(); content = open(sys.argv[1], 'rb').read()\n"
    text += "assert all(n[:-4].encode() in content for n in names), names\n"
    text += "sys.exit(3 if b'Exp' in content else 0)"
    command = Command(script(tmp_path, text) + " {model} {inputs}")
    found = reduce(residual(12, {7: "Exp"}), command, inputs=X)
    assert found.names == ("n7",)
    assert command.needs_inputs


@pytest.mark.parametrize(
    ("text", "expect", "failing"),
    [
        ("sys.exit(1)", "", True),
        ("sys.exit(0)", "", False),
        ("sys.exit(125)", "", False),
        ("print('overflow'); sys.exit(1)", "overflow", True),
        ("print('another'); sys.exit(1)", "overflow", False),
        ("import os; os.abort()", "", True),
        ("print('slow', flush=True); time.sleep(60)", "slow", True),
    ],
)
def test_a_command_fails_by_its_exit_code_and_the_text_expected(
    tmp_path: Path, text: str, expect: str, failing: bool
) -> None:
    path = tmp_path / "c.py"
    path.write_text(f"import sys, time\n{text}\n")
    command = Command(f"{sys.executable} {path} {{model}}", expect=expect, timeout=2)
    assert command(residual(2)) is failing


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python test.py", "does not mention {model}"),
        ("python 'test.py {model}", "quotes do not match"),
        ("no_such_program_here {model}", "cannot be run"),
        ("sh -c 'no_such_program_here {model}'", "could not be run"),
    ],
)
def test_a_command_that_cannot_work_is_said(command: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Command(command)(residual(2))


def test_an_engine_that_refuses_a_model_has_crashed_and_one_that_runs_it_has_not() -> None:
    broken = residual(3, {1: "NoSuchOperator"})
    assert Crash("reference", expect="NoSuchOperator")(broken)
    assert not Crash("reference")(residual(3), X)
