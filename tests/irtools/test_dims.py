"""Dimension expressions: their names, renamed and evaluated."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from torchport.irtools.dims import dim_with, evaluated, symbols

EXPRESSIONS = [
    "batch",
    "2*n + 1",
    "floor(h/2)",
    "Max(1, n)",
    "a/b/c",
    "s0 // 2",
    "(h//2) + 1",
    "n**2",
    "-n",
    "Mod(n, 2)",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_names_in_an_expression_are_those_onnx_ir_finds(text: str) -> None:
    assert symbols(text) == ir.SymbolicDim(text).free_symbols()


@pytest.mark.parametrize("text", ["?", "a[0]", "x y", "a,b", "1+", "foo(", ""])
def test_a_text_that_is_no_expression_is_a_name(text: str) -> None:
    assert symbols(text) == {text}


def test_names_are_replaced_but_not_functions() -> None:
    assert dim_with("Max(n, Max)", {"n": "m"}) == "Max(m, Max)"
    assert dim_with("a,b", {"a,b": "c"}) == "c"


@pytest.mark.parametrize(
    ("text", "expected"), [("n", 3), ("2*n + 1", 7), ("n + m", "m + 3"), ("m", "m"), ("a[0]", "a[0]"), ("x y", "x y")]
)
def test_known_sizes_are_put_in(text: str, expected: int | str) -> None:
    assert evaluated(text, {"n": 3}) == expected
