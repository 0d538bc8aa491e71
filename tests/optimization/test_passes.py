"""Each pass by itself: numbers against ONNX Runtime before and after, and a place that it must leave alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from torchport.irtools.inference import infer_missing
from torchport.optimization.passes.graph_pass import Target, Work

RNG = np.random.default_rng(0)


def model(text: str, opset: int = 20, **weights: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    made = ir.from_proto(proto)
    infer_missing(made)
    return made


def answers(given: ir.Model, feeds: dict[str, np.ndarray]) -> list[Any]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto) if not any(n.domain for n in given.graph) else None
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def applied(
    given: ir.Model, name: str, feeds: dict[str, np.ndarray] | None, *, target: Target = "onnxruntime", after: str = ""
) -> Work:
    """Apply a pass, and others by name before; check that the outputs stay what they were."""
    before = answers(given, feeds) if feeds is not None else []
    work = Work(target=target)
    for each in (*after.split(), name):
        work = Work(target=target)
        import_module(f"torchport.optimization.passes.{each}").PASS.apply(given, work)
    for was, now in zip(before, answers(given, feeds) if feeds is not None else [], strict=True):
        assert was.shape == now.shape
        np.testing.assert_allclose(now, was, rtol=1e-4, atol=1e-5)
    return work


def operators(given: ir.Model) -> list[str]:
    return [node.op_type for node in given.graph]


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_what_does_not_depend_on_inputs_is_computed() -> None:
    m = model("g (float[3] x) => (float[3] y) { c = Add(a, b)  y = Mul(x, c) }", a=f(3), b=f(3))
    assert applied(m, "constant_folding", {"x": f(3)}).changes == 1
    assert operators(m) == ["Mul"]


def test_random_numbers_are_not_computed_beforehand() -> None:
    m = model("g (float[3] x) => (float[3] y) { r = RandomNormal<shape=[3]>()  y = Mul(x, r) }")
    assert applied(m, "constant_folding", None).changes == 0
    assert operators(m) == ["RandomNormal", "Mul"]


def test_a_large_constant_is_not_made() -> None:
    m = model(
        "g (float[9] x) => (float[n] y) { e = Expand(one, s)  y = Add(x, e) }",
        one=np.float32([1]),
        s=np.int64([1000, 1000, 9]),
    )
    assert applied(m, "constant_folding", None).changes == 0


def test_dead_nodes_and_weights_go() -> None:
    m = model("g (float[3] x) => (float[3] y) { d = Add(x, w)  y = Relu(x) }", w=f(3))
    applied(m, "dead_code", {"x": f(3)})
    assert operators(m) == ["Relu"]
    assert not m.graph.initializers


def test_an_input_that_nothing_reads_stays() -> None:
    m = model("g (float[3] x, float[3] z) => (float[3] y) { y = Relu(x) }")
    applied(m, "dead_code", {"x": f(3), "z": f(3)})
    assert [v.name for v in m.graph.inputs] == ["x", "z"]


def test_equal_nodes_become_one() -> None:
    m = model("g (float[3] x) => (float[3] y) { a = Exp(x)  b = Exp(x)  y = Add(a, b) }")
    assert applied(m, "common_subexpressions", {"x": f(3)}).changes == 1
    assert operators(m) == ["Exp", "Add"]


def test_equal_random_nodes_stay_two() -> None:
    text = "g (float[3] x) => (float[3] y) { a = Bernoulli(x)  b = Bernoulli(x)  y = Add(a, b) }"
    m = model(text)
    assert applied(m, "common_subexpressions", None).changes == 0
    assert operators(m) == ["Bernoulli", "Bernoulli", "Add"]


def test_equal_weights_are_stored_once() -> None:
    w = f(64, 64)
    m = model("g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, v)  y = MatMul(a, w) }", v=w, w=w.copy())
    applied(m, "duplicate_weights", {"x": f(2, 64)})
    assert len(m.graph.initializers) == 1


def test_weights_that_differ_in_one_number_stay_two() -> None:
    v = f(64, 64)
    w = v.copy()
    w[63, 63] += 1
    m = model("g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, v)  y = MatMul(a, w) }", v=v, w=w)
    applied(m, "duplicate_weights", {"x": f(2, 64)})
    assert len(m.graph.initializers) == 2


def test_operators_that_change_nothing_go() -> None:
    text = """g (float[3] x) => (float[3] y)
    { a = Identity(x)  b = Cast<to=1>(a)  c = Mul(b, one)  d = Relu(c)  e = Relu(d)  y = Neg(e) }"""
    m = model(text, one=np.float32(1))
    applied(m, "redundant_operators", {"x": f(3)})
    assert operators(m) == ["Relu", "Neg"]


def test_an_identity_between_input_and_output_stays() -> None:
    m = model("g (float[3] x) => (float[3] y) { y = Identity(x) }")
    applied(m, "redundant_operators", {"x": f(3)})
    assert operators(m) == ["Identity"]


def test_a_cast_that_rounds_stays() -> None:
    m = model("g (float[3] x) => (float[3] y) { a = Cast<to=7>(x)  y = Cast<to=1>(a) }")
    applied(m, "redundant_operators", {"x": f(3) * 9})
    assert operators(m) == ["Cast", "Cast"]


def test_a_reshape_to_known_sizes_reads_what_the_view_before_it_reads() -> None:
    text = "g (float[2,6] x) => (float[3,4] y) { a = Reshape(x, s)  b = Flatten(a)  c = Reshape(b, t)  y = Relu(c) }"
    m = model(text, s=np.int64([3, 2, 2]), t=np.int64([3, -1]))
    applied(m, "redundant_reshapes", {"x": f(2, 6)})
    assert operators(m) == ["Reshape", "Relu"]


def test_a_reshape_that_takes_a_size_over_stays_behind_the_view() -> None:
    text = "g (float[2,6] x) => (float[3,4] y) { a = Reshape(x, s)  b = Reshape(a, t)  y = Relu(b) }"
    m = model(text, s=np.int64([3, 2, 2]), t=np.int64([0, -1]))
    applied(m, "redundant_reshapes", {"x": f(2, 6)})


def test_a_reshape_to_names_of_dimensions_in_another_order_stays() -> None:
    text = """g (float[n,m] x) => (float[m,n] y)
    { s = Shape(x)  r = Gather(s, back)  a = Reshape(x, r)  y = Relu(a) }"""
    m = model(text, back=np.int64([1, 0]))
    applied(m, "redundant_reshapes", {"x": f(2, 3)})
    assert "Reshape" in operators(m)


def test_a_concat_in_a_concat_is_one() -> None:
    text = """g (float[2,3] x) => (float[2,12] y)
    { a = Concat<axis=1>(x, x)  b = Concat<axis=-1>(a, x)  c = Concat<axis=1>(x, b)  y = Concat<axis=0>(c) }"""
    m = model(text)
    applied(m, "slices_and_concats", {"x": f(2, 3)}, after="slices_and_concats")
    assert operators(m) == ["Concat"]


def test_a_concat_along_another_axis_stays() -> None:
    m = model("g (float[2,2] x) => (float[4,4] y) { a = Concat<axis=1>(x, x)  y = Concat<axis=0>(a, a) }")
    applied(m, "slices_and_concats", {"x": f(2, 2)})
    text = (
        "g (float[2,2] x) => (float[4,2] y) { a = Concat<axis=0>(x)  b = Concat<axis=1>(a)  y = Concat<axis=0>(b, x) }"
    )
    n = model(text)
    applied(n, "slices_and_concats", {"x": f(2, 2)})
    assert operators(m) == ["Concat", "Concat"]
    assert operators(n) == ["Concat"]


def test_transposes_around_numberwise_operators_cancel() -> None:
    text = """g (float[2,3,4] x) => (float[2,3,4] y)
    { a = Transpose<perm=[2,0,1]>(x)  b = Relu(a)  c = Mul(b, two)  y = Transpose<perm=[1,2,0]>(c) }"""
    m = model(text, two=np.float32(2))
    applied(m, "transposes", {"x": f(2, 3, 4)})
    assert "Transpose" not in operators(m)


def test_transposes_that_do_not_cancel_become_one() -> None:
    text = """g (float[2,3,4] x) => (float[3,2,4] y)
    { a = Transpose<perm=[2,0,1]>(x)  b = Neg(a)  y = Transpose<perm=[2,1,0]>(b) }"""
    m = model(text)
    applied(m, "transposes", {"x": f(2, 3, 4)})
    assert operators(m).count("Transpose") == 1


def test_a_transpose_stays_before_an_operator_that_broadcasts() -> None:
    text = """g (float[2,3] x) => (float[2,3] y)
    { a = Transpose<perm=[1,0]>(x)  b = Mul(a, row)  y = Transpose<perm=[1,0]>(b) }"""
    m = model(text, row=f(2))
    assert applied(m, "transposes", {"x": f(2, 3)}).changes == 0


def test_a_transpose_that_is_read_twice_stays() -> None:
    text = """g (float[2,3] x) => (float[2,3] y, float[3,2] z)
    { a = Transpose<perm=[1,0]>(x)  y = Transpose<perm=[1,0]>(a)  z = Relu(a) }"""
    m = model(text)
    assert applied(m, "transposes", {"x": f(2, 3)}).changes == 0


def test_computed_sizes_of_a_reshape_become_a_constant() -> None:
    text = """g (float[n,4,6] x) => (float[n,4,2,3] y)
    { s = Shape<start=0, end=1>(x)  t = Concat<axis=0>(s, rest)  a = Reshape(x, t)  y = Relu(a) }"""
    m = model(text, rest=np.int64([4, 2, 3]))
    applied(m, "dead_code", {"x": f(5, 4, 6)}, after="shape_arithmetic")
    assert operators(m) == ["Reshape", "Relu"]


def test_sizes_of_which_two_are_unknown_stay_computed() -> None:
    text = """g (float[n,m] x, int64[1] p) => (float[?,?] y)
    { q = Div(size, p)  t = Concat<axis=0>(p, q)  y = Reshape(x, t) }"""
    m = model(text, size=np.int64([12]))
    assert applied(m, "shape_arithmetic", {"x": f(3, 4), "p": np.int64([2])}).changes == 0


@pytest.mark.parametrize("rows", [0, 3])
def test_a_batch_of_no_rows_keeps_its_shape(rows: int) -> None:
    text = """g (float[n,4] x) => (float[n,2,2] y)
    { s = Shape<start=0, end=1>(x)  t = Concat<axis=0>(s, rest)  y = Reshape(x, t) }"""
    m = model(text, rest=np.int64([2, 2]))
    assert applied(m, "shape_arithmetic", {"x": f(rows, 4)}).changes == 1


def conv_and(text: str, **weights: np.ndarray) -> ir.Model:
    start = "g (float[1,3,8,8] x) => (float[1,4,6,6] y) { a = Conv(x, w, b) "
    return model(start + text + " }", w=f(4, 3, 3, 3), b=f(4), **weights)


def test_a_batch_normalization_is_folded_into_the_convolution() -> None:
    statistics = {"s": f(4), "t": f(4), "m": f(4), "v": np.abs(f(4)) + 1}
    m = conv_and("y = BatchNormalization(a, s, t, m, v)", **statistics)
    applied(m, "conv_fusion", {"x": f(1, 3, 8, 8)})
    assert operators(m) == ["Conv"]


@pytest.mark.parametrize("operator", ["Add(a, c)", "Mul(c, a)", "Sub(a, c)", "Div(a, c)"])
def test_a_number_for_each_channel_is_folded_into_the_convolution(operator: str) -> None:
    m = conv_and(f"y = {operator}", c=f(4, 1, 1) + 3)
    applied(m, "conv_fusion", {"x": f(1, 3, 8, 8)})
    assert operators(m) == ["Conv"]


@pytest.mark.parametrize("operator", ["Add(a, d)", "Div(c, a)", "Sub(c, a)"])
def test_what_is_no_number_for_each_channel_stays_behind_the_convolution(operator: str) -> None:
    m = conv_and(f"y = {operator}", c=f(4, 1, 1), d=f(6))
    assert applied(m, "conv_fusion", {"x": f(1, 3, 8, 8)}).changes == 0


def test_a_convolution_whose_weights_are_shared_is_left() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,4,6,6] y, float[1,4,6,6] z)
    { a = Conv(x, w)  y = Mul(a, c)  z = Conv(x, w) }"""
    m = model(text, w=f(4, 3, 3, 3), c=f(4, 1, 1))
    assert applied(m, "conv_fusion", {"x": f(1, 3, 8, 8)}).changes == 0


def test_a_product_and_its_bias_are_one_gemm() -> None:
    text = "g (float[n,3] x) => (float[n,5] y) { t = Transpose<perm=[1,0]>(w)  a = MatMul(x, t)  y = Add(b, a) }"
    m = model(text, w=f(5, 3), b=f(5))
    applied(m, "dead_code", {"x": f(2, 3)}, after="gemm_fusion")
    assert operators(m) == ["Gemm"]


@pytest.mark.parametrize("shape", [(4, 2, 5), (2, 5)])
def test_a_bias_that_is_no_row_is_added_apart(shape: tuple[int, ...]) -> None:
    dims = ",".join(map(str, shape))
    m = model(f"g (float[2,3] x) => (float[{dims}] y) {{ a = MatMul(x, w)  y = Add(a, b) }}", w=f(3, 5), b=f(*shape))
    assert applied(m, "gemm_fusion", {"x": f(2, 3)}).changes == 0
