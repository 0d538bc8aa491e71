"""Walks over a model reach its branches and functions, and each thing once."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from torchport.irtools.serialization import proto_graphs, proto_scopes, proto_tensors
from torchport.irtools.traversal import (
    all_nodes,
    all_values,
    bodies,
    captured_values,
    graphs,
    inlined,
    opset_of,
    own_values,
    subgraphs,
    used_values,
)

BRANCHES = """
<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
main (float[N] x, bool c, bool d) => (float[N] y)
<float[1] w = {2.0}, float[1] unused = {3.0}>
{
  a = Neg (x)
  y = If (c) <
    then_branch = t () => (float[N] p) { p = If (d) <
      then_branch = tt () => (float[N] s) { s = Abs (a) },
      else_branch = te () => (float[N] r) { r = Mul (w, x) }> },
    else_branch = e () => (float[N] q) { q = my.f (x) }>
}
<domain: "my", opset_import: ["" : 18]>
f (u) => (v) { k = Constant <value_float = 1.0> () v = Add (u, k) }
"""


@pytest.fixture
def message() -> onnx.ModelProto:
    return onnx.parser.parse_model(BRANCHES)


@pytest.fixture
def model(message: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(message)


def test_nodes_of_branches_and_functions_are_reached(model):
    assert [n.op_type for n in all_nodes(model)] == ["Neg", "If", "If", "Abs", "Mul", "f", "Constant", "Add"]


def test_graphs_stand_outer_first_and_the_functions_last(model):
    assert [g.name for g in graphs(model)][:5] == ["main", "t", "tt", "te", "e"]
    assert list(graphs(model))[5] is model.functions["my", "f", ""].graph
    assert [g.name for g in graphs(model.graph)] == ["main", "t", "tt", "te", "e"]
    assert bodies(model) == [model.graph, model.functions["my", "f", ""].graph]


def test_each_value_comes_once_also_an_initializer_that_is_an_input(model):
    names = [v.name for v in all_values(model)]
    assert names == ["x", "c", "d", "w", "unused", "a", "y", "p", "s", "r", "q", "u", "k", "v"]
    model.graph.inputs.append(model.graph.initializers["w"])
    assert [v.name for v in own_values(model.graph)].count("w") == 1
    assert [v.name for v in own_values(model.functions["my", "f", ""])] == ["u", "k", "v"]


def test_a_node_uses_what_its_branches_take_from_outside(model):
    neg, outer = model.graph
    assert [v.name for v in used_values(neg)] == ["x"]
    assert [g.name for g in subgraphs(outer)] == ["t", "e"]
    assert [v.name for v in used_values(outer)] == ["c", "d", "a", "w", "x"]
    assert [v.name for v in captured_values(subgraphs(outer)[0])] == ["d", "a", "w", "x"]


def test_the_walks_over_a_message_and_over_the_model_agree(message, model):
    assert {g.name for g in proto_graphs(message)} == {g.name for g in graphs(model.graph)}
    scopes = proto_scopes(message.graph, *message.functions)
    assert sorted(n.op_type for s in scopes for n in s.node) == sorted(n.op_type for n in all_nodes(model))
    assert {t.name for t in proto_tensors(message)} == {v.name for v in all_values(model.graph) if v.is_initializer()}


def test_inlining_leaves_the_model_given_and_drops_the_functions(model):
    flat = inlined(model)
    assert not flat.functions
    assert [n.op_type for n in all_nodes(flat)] == ["Neg", "If", "If", "Abs", "Mul", "Constant", "Add"]
    assert model.functions
    assert inlined(flat) is flat


def test_the_opset_is_found_under_both_names_of_the_domain(model):
    assert opset_of(model) == opset_of(model.graph) == opset_of(model.functions["my", "f", ""]) == 18
    model.graph.opset_imports["ai.onnx"] = model.graph.opset_imports.pop("")
    assert opset_of(model) == 18
