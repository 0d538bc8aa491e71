"""The proof behind `torchport edit --verify`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import torchport as tp
from torchport.errors import InputError, RandomModelError
from torchport.verification.equivalence import prove_same

HEADER = '<ir_version: 9, opset_import: ["": 18]>'
FREE = HEADER + " g (float[n,4] x) => (float[n,4] y) { a = Relu(x)  y = Tanh(a) }"
FIXED = FREE.replace("[n,4]", "[3,4]")


def model(text: str) -> ir.Model:
    return ir.from_onnx_text(text)


def test_a_model_agrees_with_itself_to_the_last_bit() -> None:
    proof = prove_same(model(FREE), model(FREE))
    assert proof.passed
    assert len(proof.cases) == 8
    assert all(case.max_abs == 0 for case in proof.cases)


def test_names_and_names_of_dimensions_may_differ() -> None:
    other = model(FREE)
    tp.graph.rename(other, {"x": "image", "y": "scores", "n": "batch"})
    assert prove_same(model(FREE), other).passed


@pytest.mark.parametrize("change", [("Tanh", "Sigmoid"), ("Relu", "Elu"), ("Relu(x)", "Identity(x)")])
def test_another_operator_is_found(change: tuple[str, str]) -> None:
    proof = prove_same(model(FREE), model(FREE.replace(*change)))
    assert not proof.passed
    assert proof.failures


def test_a_freed_batch_is_compared_row_by_row() -> None:
    proof = prove_same(model(FIXED), model(FREE))
    assert proof.passed
    assert {case.sizes["n"] for case in proof.cases} == {1, 2, 3, 5}
    assert any("other sizes were compared 3 rows at a time" in str(f) for f in proof.findings)


def test_a_freed_batch_that_mixes_rows_is_found() -> None:
    mixing = HEADER + " g (float[{n},4] x) => (float[{n},4] y) {{ y = Softmax<axis = 0>(x) }}"
    proof = prove_same(model(mixing.format(n=1)), model(mixing.format(n="n")))
    assert not proof.passed


def test_two_freed_dimensions_are_compared_at_the_sizes_they_had() -> None:
    text = (
        HEADER + " g (float[{a},4] x, float[{b},4] z) => (float[{a},4] y, float[{b},4] w) {{ y = Relu(x) w = Neg(z) }}"
    )
    fixed, free = model(text.format(a=3, b=2)), model(text.format(a="n", b="m"))
    assert prove_same(fixed, free).passed
    with pytest.raises(InputError, match="n and m were fixed before, and both have other sizes now"):
        prove_same(fixed, free, inputs={n: np.ones((5, 4), np.float32) for n in "xz"})


def test_another_freed_axis_is_compared_at_the_size_it_had() -> None:
    proof = prove_same(model(FREE.replace("n,4", "1,7")), model(FREE.replace("n,4", "n,m")))
    assert proof.passed
    assert {case.sizes["m"] for case in proof.cases if "m" in case.sizes} <= {7}
    assert any("'m' was fixed to 7 before" in str(f) for f in proof.findings)
    assert any("one row at a time" in str(f) for f in proof.findings)


@pytest.mark.parametrize(
    "other",
    [
        FREE.replace("float[n,4] x", "float16[n,4] x").replace("Relu(x)", "Cast<to = 1>(x)"),
        FREE.replace("[n,4] x", "[n,4,1] x"),
        FREE.replace("[n,4]", "[n,5]"),
        FREE.replace("(float[n,4] x)", "(float[n,4] x, float[n,4] z)"),
    ],
    ids=["dtype", "rank", "size", "count"],
)
def test_inputs_that_changed_cannot_be_compared(other: str) -> None:
    with pytest.raises(InputError, match="the edits changed the inputs: there is nothing to compare with") as raised:
        prove_same(model(FREE), model(other))
    assert "before: x: float32[n,4]; now: " in str(raised.value.where)


def test_outputs_that_changed_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="the edits changed the outputs"):
        prove_same(
            model(FREE),
            model(
                FREE.replace("y = Tanh(a)", "y = Tanh(a)").replace(
                    "=> (float[n,4] y)", "=> (float[n,4] y, float[n,4] a)"
                )
            ),
        )


def test_an_example_may_be_given_by_the_new_names() -> None:
    proof = prove_same(model(FREE), model(FREE), inputs={"x": np.ones((5, 4), np.float32)})
    assert proof.passed
    assert proof.cases[0].sizes == {"n": 5}


@pytest.mark.parametrize(("names", "what"), [(["z"], "there is no input 'z'"), (["x", "z"], "there is no input 'z'")])
def test_an_example_of_another_name_is_refused(names: list[str], what: str) -> None:
    with pytest.raises(InputError, match=what):
        prove_same(model(FREE), model(FREE), inputs={name: np.ones((5, 4), np.float32) for name in names})


def test_an_input_without_a_shape_wants_an_example() -> None:
    shapeless = model(FREE)
    shapeless.graph.inputs[0].shape = None
    with pytest.raises(InputError, match="input 'x' has no shape to make an example from"):
        prove_same(shapeless, shapeless)


def test_a_model_that_draws_numbers_is_called_random() -> None:
    drawing = model(FREE.replace("y = Tanh(a)", "r = RandomNormalLike(a)  y = Add(a, r)"))
    with pytest.raises(RandomModelError, match="answers differently each time"):
        prove_same(drawing, drawing)


@pytest.mark.parametrize("kind", ["string[n]", "seq(float[n])"])
def test_an_input_that_no_example_can_be_made_of_is_named(kind: str) -> None:
    odd = model(HEADER + f" g ({kind} x) => ({kind} y) {{ y = Identity(x) }}")
    with pytest.raises(InputError, match=r"input 'x' is .*, of which no example can be made"):
        prove_same(odd, odd)


# --- files whose inputs need certain sizes ----------------------------------------------------------------------------

PATCHES = HEADER + (
    " g (float[n,c,h,w] x) => (float[n,c,oh,ow] y)"
    "{ a = MaxPool<kernel_shape=[4,4], strides=[4,4]>(x)  b = MaxPool<kernel_shape=[7,7]>(a)  y = Relu(b) }"
)
HEADS = HEADER + (
    " g (float[n,length] x) => (float[n,k,16] y) <int64[3] s = {0, -1, 16}> { r = Reshape(x, s)  y = Relu(r) }"
)


@pytest.mark.parametrize(("text", "dim", "least"), [(PATCHES, "h", 28), (HEADS, "length", 16)])
def test_an_example_of_a_size_that_the_model_takes_is_found(text: str, dim: str, least: int) -> None:
    given = model(text)
    proof = prove_same(given.clone(), given)
    assert proof.passed
    assert proof.cases[0].sizes[dim] >= least
    assert len({case.sizes[dim] for case in proof.cases if case.verdict == "pass"}) > 1


def test_where_no_size_helps_the_message_has_the_input_to_give() -> None:
    given = model(
        HEADER
        + "g (float[n,2] x, int64[1] key) => (float[n,2] y) <float[3,2] t = {1.0,2.0,3.0,4.0,5.0,6.0}, int64 o={90}>"
        "{ k = Sub(key, o)  r = Gather(t, k)  y = Mul(x, r) }"
    )
    with pytest.raises(InputError) as caught:
        prove_same(given.clone(), given)
    assert "refuses the" in caught.value.what
    assert "-i 'x=float32[2,2]' -i 'key=int64[1]'" in str(caught.value.next_step)
    inputs = {"x": np.ones((2, 2), np.float32), "key": np.array([91])}
    assert prove_same(given.clone(), given, inputs=inputs).passed


def test_a_file_that_states_a_wrong_shape_of_its_output_can_be_verified() -> None:
    text = "g (float[n,4] x) => (float[n,4] y) <int64[3] s = {-1, 2, 2}> { y = Reshape(x, s) }"
    wrong, right = model(HEADER + text), model(HEADER + text)
    right.graph.outputs[0].shape = ir.Shape(["n", 2, 2])
    assert prove_same(wrong, right).passed
    assert not prove_same(wrong, model(HEADER + text.replace("Reshape(x, s)", "Identity(x)"))).passed
