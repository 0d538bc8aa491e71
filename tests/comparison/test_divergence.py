"""Where an error is introduced, shown by what agrees."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from torchport.comparison.divergence import Spread
from torchport.comparison.layer_scan import _inside, _levels
from torchport.comparison.pair_torch import Pair
from torchport.numerics.check import QuickCheck


def _graph(*lines: str) -> ir.Graph:
    """Nodes as ``y = Op(a, b)``; the inputs are ``x`` and ``z``, the last node's output is the graph's."""
    nodes = []
    for line in lines:
        out, rest = line.split(" = ")
        op, inputs = rest.rstrip(")").split("(")
        nodes.append(helper.make_node(op, inputs.split(", "), [out], name=f"n_{out}"))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "z")]
    last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", infos, [last])
    return ir.from_proto(helper.make_model(graph)).graph


CHAIN = ("a = Neg(x)", "b = Exp(a)", "c = Neg(b)", "d = Neg(c)")


def _spread(
    graph: ir.Graph, good: str, bad: str, *, end: str = "d", sure: str | None = None, certain: str | None = None
) -> Spread:
    return Spread(
        graph,
        good.split(),
        [*bad.split(), end],
        ends={end},
        sure=(good if sure is None else sure).split(),
        certain=[*(bad if certain is None else certain).split(), end],
    )


def _names(nodes: object) -> list[str]:
    return [str(n.name) for n in nodes]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("good", "bad", "first"), [("a", "b c", "n_b"), ("", "a b c", "n_a"), ("a b c", "", "n_d")])
def test_an_error_is_introduced_where_the_input_agrees_and_the_output_does_not(good: str, bad: str, first: str) -> None:
    spread = _spread(_graph(*CHAIN), good, bad)
    region = spread.first()
    assert region is not None
    assert _names(region.nodes) == [first] == _names(spread.introduced())


def test_nodes_between_what_agrees_and_what_differs_are_all_suspects() -> None:
    region = _spread(_graph(*CHAIN), "a", "d").first()
    assert region is not None
    assert _names(region.nodes) == ["n_b", "n_c", "n_d"]
    assert region.end.name == "d"


def test_a_tensor_without_a_partner_is_innocent_if_what_is_made_of_it_agrees() -> None:
    region = _spread(_graph(*CHAIN), "c", "d").first()
    assert region is not None
    assert _names(region.nodes) == ["n_d"]


def test_an_uncertain_difference_before_something_that_agrees_is_no_birth() -> None:
    graph = _graph(*CHAIN)
    doubtful = _spread(graph, "a c", "b", certain="")
    assert _names(doubtful.introduced()) == ["n_d"]


def test_a_certain_difference_that_a_relu_hides_is_not_blamed_if_the_outputs_come_from_what_agrees() -> None:
    graph = _graph("a = Neg(x)", "b = Relu(a)", "d = Neg(b)")
    spread = _spread(graph, "b", "a")
    assert _names(spread.introduced()) == ["n_d"]


def test_two_faults_are_two_births_and_the_first_is_named() -> None:
    graph = _graph("a = Neg(x)", "b = Neg(z)", "d = Add(a, b)")
    spread = _spread(graph, "", "a b")
    region = spread.first()
    assert _names(spread.introduced()) == ["n_a", "n_b"]
    assert region is not None
    assert _names(region.nodes) == ["n_a"]


def test_an_error_on_one_branch_leaves_the_other_alone() -> None:
    graph = _graph("a = Neg(x)", "b = Exp(a)", "c = Neg(a)", "d = Add(b, c)")
    spread = _spread(graph, "a c", "b")
    assert {str(v.name) for v in spread.off} == {"b", "d"}
    assert _names(spread.introduced()) == ["n_b"]


def test_nothing_wrong_is_no_divergence() -> None:
    spread = Spread(_graph(*CHAIN), list("abcd"), [], ends=set(), sure=list("abcd"), certain=[])
    assert spread.first() is None
    assert not spread.introduced()
    assert not spread.off


def test_what_agrees_but_not_closely_does_not_end_the_search_for_what_surely_differs_before_it() -> None:
    """A mask of -10,000 makes the errors of scores small beside it."""
    assert _names(_spread(_graph(*CHAIN), "b", "a c", sure="").introduced()) == ["n_a"]
    assert _names(_spread(_graph(*CHAIN), "b", "a c", sure="b").introduced()) == ["n_c"]
    assert _names(_spread(_graph(*CHAIN), "b", "a c", sure="", certain="c").introduced()) == ["n_c"]


def test_a_tensor_that_was_compared_with_nothing_is_no_birth() -> None:
    graph = _graph("a = Neg(x)", "b = Neg(z)", "c = Abs(b)", "d = Add(a, c)")
    spread = _spread(graph, "", "a")
    assert _names(spread.introduced()) == ["n_a"]
    assert {str(v.name) for v in spread.propagated} == {"d"}


def _pair(relative: float, *, ok: bool) -> Pair:
    return Pair("", QuickCheck(ok, relative, 1.0), 0)


def test_whole_numbers_do_not_count_for_how_closely_tensors_agree() -> None:
    graph = _graph("s = Shape(x)", "t = Shape(x)", "u = Shape(x)", "a = Cast(x)", "b = Neg(a)", "d = Neg(b)")
    values = {str(v.name): v for n in graph for v in n.outputs}
    for name, value in values.items():
        value.dtype = ir.DataType.INT64 if name in "stu" else ir.DataType.FLOAT
    pairs = {n: _pair(0, ok=True) for n in "stu"} | {"a": _pair(1e-4, ok=True), "b": _pair(2e-4, ok=True)}
    sure, notable = _levels(pairs, values)
    assert sure == set("stuab")
    assert notable > 1e-3
    values["a"].dtype = ir.DataType.FLOAT16
    assert _levels({"a": _pair(0, ok=True)}, values)[1] > 1e-2


def test_a_difference_before_what_is_right_to_the_last_digits_is_another_tensors() -> None:
    graph = _graph(*CHAIN)
    pairs = {"a": _pair(0, ok=True), "b": _pair(0.5, ok=False), "d": _pair(0, ok=True)}
    levels = ({"a", "d"}, 1e-5)
    assert _inside(graph, pairs | {"c": _pair(0, ok=True)}, ({"a", "c", "d"}, 1e-5)) is None
    found = _inside(graph, pairs | {"c": _pair(1e-3, ok=True)}, levels)
    assert found is not None
    assert _names(found.nodes) == ["n_b"]
