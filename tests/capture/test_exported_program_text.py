"""The text of a saved program: the narrow forms that are accepted, and what lies outside of them."""

from __future__ import annotations

import pytest

from torchport.capture.exported_program_text import Refusal, check_expression, check_name, check_operator, check_tree


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "FloorDiv(Symbol('s27', positive=True, integer=True), Integer(2))",
        "Pow(Symbol('s0', integer=True), Integer(2))",
        "Add(Mul(Integer(-1), Symbol('s0')), Float('1.5', precision=53))",
        "2*s0 + 1",
        "((L['x'].size()[1]*L['x'].size()[0]) % (2*L['x'].size()[0])) == 0",
        "math.trunc(torch.sym_float(L['x'].size()[2]) ** 0.5) == 3",
        "L['d']['b c'].stride()[0] != 1 and not L['x'].storage_offset() > 0",
    ],
)
def test_arithmetic_on_sizes_is_accepted(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('x')",
        "().__class__.__base__",
        "Symbol.__init__",
        "eval('1')",
        "torch.load('x')",
        "math.__loader__",
        "L['x'].size().append(1)",
        "L['x'].numpy()",
        "Symbol('eval(1)')",
        "[x for x in y]",
        "(lambda: 1)()",
        "(x := 1)",
        "9**9**9",
        "Pow(Integer(9), Pow(Integer(9), Integer(99)))",
        "LShift(1, 10000000000)",
        "((((s**64)**64)**64)**64)**64",
        "L['x']\n.size()",
        "f'{x}'",
        "(" * 5000 + ")" * 5000,
        "",
    ],
)
def test_more_than_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(Refusal):
        check_expression(text)


def test_names_operators_and_trees_have_narrow_forms() -> None:
    check_operator("torch.ops.aten.add.Tensor")
    check_operator("_operator.mul")
    for text in (
        "torch.ops.aten.__class__",
        "torch.hub.load",
        "math.__loader__",
        "#x:y",
        "torch.ops.a",
        "os.system",
    ):
        with pytest.raises(Refusal):
            check_operator(text)
    for text in ("a b", "a\n", "a;b", "a.b", "x=1", "x,"):
        with pytest.raises(Refusal):
            check_name(text)
    for text in ("", "[]", "[1, {}]", "null", '[1, {"type": "os.x", "context": null, "children_spec": []}]'):
        with pytest.raises(Refusal):
            check_tree(text)
