"""Outputs that a model draws at random are known from its graph."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from torchport.irtools.names import name_of
from torchport.irtools.random_numbers import random_outputs


def drawn(text: str, opset: int = 17) -> dict[str, str]:
    found = random_outputs(ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : {opset}, "my" : 1]> {text}'))
    return {output: name_of(node) for output, node in found.items()}


def test_only_outputs_behind_a_random_node_are_random() -> None:
    body = "g (float[n] x) => (float[n] y, float[n] z) { [draw] r = RandomNormalLike(x) y = Add(x, r) z = Neg(x) }"
    assert drawn(body) == {"y": "draw"}


@pytest.mark.parametrize(
    ("body", "random"),
    [
        ("<float r = {0.5}, bool t = {1}> { [d] y = Dropout(x, r, t) }", True),
        ("<float r = {0.5}, bool t = {0}> { [d] y = Dropout(x, r, t) }", False),
        ("<float r = {0.0}, bool t = {1}> { [d] y = Dropout(x, r, t) }", False),
        ("{ [d] y = Dropout(x) }", False),
        ("{ [d] y = Bernoulli(x) }", True),
        ("{ [d] y = my.RandomNormal(x) }", False),
    ],
)
def test_dropout_is_random_while_it_trains(body: str, random: bool) -> None:
    assert drawn(f"g (float[n] x) => (float[n] y) {body}") == ({"y": "d"} if random else {})


def test_a_draw_in_a_branch_or_a_function_is_found() -> None:
    branch = """g (float[n] x, bool c) => (float[n] y) { [if] y = If(c) <
        then_branch = t () => (float[n] p) { p = RandomUniformLike(x) },
        else_branch = e () => (float[n] q) { q = Identity(x) }> }"""
    assert drawn(branch) == {"y": "if"}
    called = "g (float[n] x) => (float[n] y) { y = my.noise(x) }"
    called += ' <domain: "my", opset_import: ["" : 17]> noise (a) => (b) { b = RandomNormalLike(a) }'
    assert list(drawn(called)) == ["y"]
