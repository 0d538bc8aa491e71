"""Names in a model: new ones that nothing has, and errors that offer the close ones."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from torchport.errors import InputError
from torchport.irtools.names import FreshNames, Names

BRANCH = """
<ir_version: 10, opset_import: ["" : 18]>
main (float[N] x, bool c) => (float[N] y)
{ y = If (c) < then_branch = t () => (float[N] p) { p = Neg (x) }, else_branch = e () => (float[N] q) { q = Abs (x) }> }
"""


@pytest.fixture
def model() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(BRANCH))


def test_a_fresh_name_is_none_of_a_branch_and_none_given_before(model):
    names = FreshNames(model)
    assert [names.fresh("p"), names.fresh("p"), names.fresh("new"), names.fresh("new")] == [
        "p_1",
        "p_2",
        "new",
        "new_1",
    ]
    assert FreshNames(model.graph, model.graph).fresh("x") == "x_1"


def test_a_mistyped_name_gets_the_close_ones(model):
    model.graph.inputs[0].name = "image"
    assert Names(model).value("image") is model.graph.inputs[0]
    with pytest.raises(InputError, match=r"there is no tensor 'imgae'[\s\S]*did you mean image"):
        Names(model).value("imgae")


def test_a_name_inside_a_branch_is_said_to_be_there(model):
    with pytest.raises(InputError, match="'p' is inside the body of the If that makes 'y'"):
        Names(model).value("p")
