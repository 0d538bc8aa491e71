"""Constants are recognized wherever they are stored, and read only where they are certain."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from torchport.irtools.node_reader import (
    Refusal,
    attribute,
    attribute_or,
    constant,
    constant_tensor,
    is_constant,
    is_constant_node,
)

MODEL = """
<ir_version: 10, opset_import: ["" : 18, "other" : 1]>
main (float[2] x, float[1] default) => (float[2] y)
<float[1] w = {2.0}, float[1] default = {3.0}>
{
  t = Constant <value = float[2] {1.0, 2.0}> ()
  i = Constant <value_ints = [1, 2]> ()
  f = Constant <value_float = 0.5> ()
  s = Constant <value_strings = ["a", "b"]> ()
  same = Identity (t)
  foreign = other.Constant <value_float = 1.0> ()
  y = Neg (x)
}
"""


@pytest.fixture
def values() -> dict[str, ir.Value]:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    return dict(ir.convenience.create_value_mapping(model.graph))


def test_initializers_and_outputs_of_constant_nodes_are_constants(values):
    assert {name for name, v in values.items() if is_constant(v)} == {"w", "default", "t", "i", "f", "s"}


def test_another_domains_operator_is_no_constant_node(values):
    assert is_constant_node(values["t"].producer())
    assert not is_constant_node(values["foreign"].producer())
    assert not is_constant_node(None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w", np.array([2], np.float32)),
        ("t", np.array([1, 2], np.float32)),
        ("i", np.array([1, 2], np.int64)),
        ("f", np.array(0.5, np.float32)),
    ],
)
def test_numbers_are_read_from_each_form_and_both_readers_agree(values, name, expected):
    found, tensor = constant(values[name]), constant_tensor(values[name])
    assert found is not None
    assert tensor is not None
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_what_a_caller_may_override_is_stored_but_not_known(values):
    assert constant(values["default"]) is None
    assert constant_tensor(values["default"]) is not None


def test_an_identity_is_looked_through_for_numbers_only(values):
    np.testing.assert_array_equal(constant(values["same"]), [1, 2])
    assert constant_tensor(values["same"]) is None


def test_inputs_results_and_foreign_operators_are_not_known(values):
    assert [constant(values[name]) for name in ("x", "y", "foreign")] == [None] * 3
    assert [constant_tensor(values[name]) for name in ("x", "y", "foreign", "s")] == [None] * 4


def test_an_attribute_that_a_caller_sets_is_refused_or_estimated():
    node = ir.Node("", "Elu", [], [ir.RefAttr("alpha", "slope", ir.AttributeType.FLOAT)])
    with pytest.raises(Refusal, match="set by the caller"):
        attribute(node, "alpha")
    assert attribute_or(node, "alpha", 1.0) == 1.0
    assert attribute(node, "missing") is None
