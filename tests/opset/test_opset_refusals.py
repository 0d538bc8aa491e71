"""What cannot be said in another opset is refused with the reason."""

# ruff: noqa: E501  (a model is written as one line of onnx's text form)

from __future__ import annotations

import onnx_ir as ir
import pytest
from conversions import parse

from torchport.errors import OpsetError, OptionError
from torchport.opset import convert


@pytest.mark.parametrize("wrong", [3, 99, 6, 0])
def test_an_opset_that_does_not_exist_is_refused(wrong: int) -> None:
    with pytest.raises(OptionError, match="can be asked for"):
        convert.check_range(wrong)


def test_the_range_is_said() -> None:
    newest = convert.SUPPORTED[-1]
    with pytest.raises(OptionError) as caught:
        convert.check_range(99)
    assert str(caught.value).startswith(
        f"opset 99 does not exist in the installed onnx; 7 to {newest} can be asked for"
    )
    convert.check_range(7)
    convert.check_range(newest)


def test_a_refusal_names_the_node_the_reason_and_the_nearest_opset() -> None:
    text = """g (float[1,2,5,5] x, float[1,3,3,2] f) => (float[1,2,3,3] y, float[1,2,3,3] z)
        { [node_grid] y = GridSample(x, f) z = GridSample(x, f) }"""
    model = parse(text, 18)
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(OpsetError) as caught:
        convert.convert(model, 11)
    error = caught.value
    assert error.blockers == ("GridSample (2 nodes, first 'node_grid', first in opset 16)",)
    assert error.nearest == 16
    assert "ask for opset 16" in (error.next_step or "")
    assert ir.to_proto(model).SerializeToString() == before
    assert convert.convert(model, 16).opset_imports[""] == 16


def test_all_blockers_are_named_at_once() -> None:
    text = """g (float[3,3] x, int64[3] i) => (float[3,3] y, int64[3] z, float[3] w)
        { y = Einsum<equation = "ij,jk->ik">(x, x) z = BitwiseAnd(i, i) w = ReduceMean<keepdims=0>(x, i) }"""
    with pytest.raises(OpsetError) as caught:
        convert.convert(parse(text, 18), 11)
    assert [b.split(" ")[0] for b in caught.value.blockers] == ["BitwiseAnd", "Einsum", "ReduceMean"]
    assert caught.value.nearest == 18
    assert "keep opset 18" in str(caught.value)


REFUSED = [
    ("Pad-wrap", 19, 'g (float[3] x, int64[2] p) => (float[A] y) { y = Pad<mode="wrap">(x, p) }', 18),
    ("antialias", 18, 'g (float[1,1,4,4] x, float[4] s) => (float[A,B,C,D] y) { y = Resize<mode="linear", antialias=1>(x, , s) }', 17),
    ("scatter-max", 18, 'g (float[3] x, int64[1] i, float[1] u) => (float[3] y) { y = ScatterElements<reduction="max">(x, i, u) }', 17),
    ("scatter-add", 16, 'g (float[3] x, int64[1] i, float[1] u) => (float[3] y) { y = ScatterElements<reduction="add">(x, i, u) }', 15),
    ("half-pixel", 13, 'g (float[1,1,4,4] x) => (float[A,B,C,D] y) { s = Constant<value = float[4] {1,1,2,2}>() y = Resize<mode="linear">(x, , s) }', 10),
    ("dynamic-squeeze", 13, "g (float[1,3] x, int64[1] a) => (float[3] y) { y = Squeeze(x, a) }", 12),
    ("last-index", 13, "g (float[3] x) => (int64[1] y) { y = ArgMax<select_last_index=1>(x) }", 11),
    ("bfloat16", 13, "g (bfloat16[3] x) => (bfloat16[3] y) { y = Add(x, x) }", 12),
    ("training", 14, "g (float[2,3] x, float[3] s) => (float[2,3] y, float[3] m, float[3] v) { y, m, v = BatchNormalization<training_mode=1>(x, s, s, s, s) }", 13),
    ("where", 9, "g (bool[3] c, float[3] x) => (float[3] y) { y = Where(c, x, x) }", 8),
    ("erf", 9, "g (float[3] x) => (float[3] y) { y = Erf(x) }", 8),
    ("step-slice", 10, "g (float[3] x) => (float[A] y) { s = Constant<value = int64[1] {0}>() e = Constant<value = int64[1] {3}>() a = Constant<value = int64[1] {0}>() t = Constant<value = int64[1] {2}>() y = Slice(x, s, e, a, t) }", 9),
    ("per-channel", 13, "g (int8[2,3] x, float[3] s) => (float[2,3] y) { y = DequantizeLinear(x, s) }", 12),
    ("unknown-operator", 18, "g (float[3] x) => (float[3] y) { y = NoSuchThing(x) }", 17),
]  # fmt: skip


@pytest.mark.parametrize(("source", "text", "target"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_be_kept_is_refused(source: int, text: str, target: int) -> None:
    with pytest.raises(OpsetError) as caught:
        convert.convert(parse(text, source), target)
    assert caught.value.nearest == target + 1


def test_shrinking_by_nearest_is_not_guessed_at() -> None:
    text = (
        "g (float[1,1,4,4] x) => (float[A,B,C,D] y) { s = Constant<value = float[4] {1,1,0.6,0.6}>() y = Resize(x, s) }"
    )
    with pytest.raises(OpsetError, match="rounding when shrinking"):
        convert.convert(parse(text, 10), 13)


def test_an_initializer_that_callers_may_override_is_no_constant() -> None:
    text = "g (float[2,3] x, int64[1] a = {1}) => (float[A] y) { y = ReduceSum<keepdims=0>(x, a) }"
    with pytest.raises(OpsetError, match="computed at run time"):
        convert.convert(parse(text, 13), 12)
