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
from torchport.optimization.passes.graph_pass import Work
from torchport.optimization.result import Target

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


def test_a_padding_of_nothing_goes_and_another_one_stays() -> None:
    m = model("g (float[2,3] x) => (float[3,3] y) { a = Pad(x, none)  y = Pad(a, some) }", none=np.zeros(4, np.int64),
              some=np.int64([0, 0, 1, 0]))  # fmt: skip
    applied(m, "redundant_operators", {"x": f(2, 3)})
    assert operators(m) == ["Pad"]


@pytest.mark.parametrize(("fill", "left"), [(0.0, 1), (0.5, 4)])
def test_an_initial_state_of_zeros_is_left_out(fill: float, left: int) -> None:
    text = f"""g (float[s,b,4] x) => (float[s,1,b,3] y)
    {{ z = ConstantOfShape<value = float[1] {{{fill}}}>(sizes)  n = Shape<start=1, end=2>(x)
       t = Concat<axis=0>(one, n, three)  h = Expand(z, t)  y = GRU<hidden_size=3>(x, w, r, , , h) }}"""
    ints = {"sizes": [1, 1, 3], "one": [1], "three": [3]}
    m = model(text, w=f(1, 9, 4), r=f(1, 9, 3), **{n: np.int64(a) for n, a in ints.items()})
    applied(m, "dead_code", {"x": f(5, 2, 4)}, after="redundant_operators")
    assert len(operators(m)) in (left, left + 1)


def test_a_transpose_that_moves_an_axis_of_size_one_joins_the_reshape_beside_it() -> None:
    text = """g (float[4,1,3] x) => (float[4,3] y)
    { a = Transpose<perm=[1,0,2]>(x)  b = Reshape(a, s)  y = Relu(b) }"""
    m = model(text, s=np.int64([4, 3]))
    applied(m, "redundant_reshapes", {"x": f(4, 1, 3)}, after="transposes")
    assert operators(m) == ["Reshape", "Relu"]


def test_the_last_two_of_four_axes_are_swapped_without_reshapes() -> None:
    text = """g (float[2,3,4,5] x) => (float[2,3,5,4] y)
    { a = Reshape(x, s)  b = Transpose<perm=[0,2,1]>(a)  c = Reshape(b, t)  y = Relu(c) }"""
    m = model(text, s=np.int64([6, 4, 5]), t=np.int64([2, 3, 5, 4]))
    applied(m, "dead_code", {"x": f(2, 3, 4, 5)}, after="transposes")
    assert operators(m) == ["Transpose", "Relu"]


def test_reshapes_that_split_the_axes_otherwise_stay() -> None:
    text = """g (float[2,3,4,5] x) => (float[3,2,5,4] y)
    { a = Reshape(x, s)  b = Transpose<perm=[0,2,1]>(a)  c = Reshape(b, t)  y = Relu(c) }"""
    m = model(text, s=np.int64([6, 4, 5]), t=np.int64([3, 2, 5, 4]))
    assert applied(m, "transposes", {"x": f(2, 3, 4, 5)}).changes == 0


@pytest.mark.parametrize("swapped", [0, 1])
def test_a_gemm_of_rows_that_are_laid_together_is_a_product(swapped: int) -> None:
    text = f"""g (float[2,3,4] x) => (float[2,3,5] y)
    {{ a = Reshape(x, s)  b = Gemm<transB={swapped}>(a, w, c)  y = Reshape(b, t) }}"""
    m = model(text, s=np.int64([6, 4]), t=np.int64([2, 3, 5]), w=f(*((5, 4) if swapped else (4, 5))), c=f(5))
    applied(m, "dead_code", {"x": f(2, 3, 4)}, after="gemm_fusion")
    assert operators(m) == ["MatMul", "Add"]


def test_a_gemm_between_other_reshapes_stays() -> None:
    text = "g (float[2,3,4] x) => (float[3,2,5] y) { a = Reshape(x, s)  b = Gemm(a, w, c)  y = Reshape(b, t) }"
    m = model(text, s=np.int64([6, 4]), t=np.int64([3, 2, 5]), w=f(4, 5), c=f(5))
    assert applied(m, "gemm_fusion", {"x": f(2, 3, 4)}).changes == 0


def test_a_product_of_scaled_factors_is_scaled_once() -> None:
    text = "g (float[2,4] x, float[4,2] z) => (float[2,2] y) { a = Mul(x, s)  b = Mul(s, z)  y = MatMul(a, b) }"
    m = model(text, s=np.float32(0.5))
    applied(m, "gemm_fusion", {"x": f(2, 4), "z": f(4, 2)})
    assert operators(m) == ["MatMul", "Mul"]


GELU = {
    "erf": "a = Div(x, r)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half)",
    "halved first": "h = Mul(x, half)  a = Mul(q, x)  b = Erf(a)  c = Add(one, b)  y = Mul(h, c)",
    "tanh": """p = Pow(x, three)  u = Mul(p, k)  v = Add(x, u)  a = Mul(v, t)  b = Tanh(a)  c = Add(b, one)
               h = Mul(half, x)  y = Mul(h, c)""",
}
NUMBERS = {"r": 2**0.5, "q": 0.5**0.5, "one": 1, "half": 0.5, "three": 3, "k": 0.044715, "t": (2 / np.pi) ** 0.5}


@pytest.mark.parametrize("form", GELU)
def test_a_gelu_that_is_written_out_is_one_operator(form: str) -> None:
    m = model(
        f"g (float[n,4] x) => (float[n,4] y) {{ {GELU[form]} }}", **{k: np.float32(v) for k, v in NUMBERS.items()}
    )
    work = applied(m, "activations", {"x": f(3, 4)})
    applied(m, "dead_code", {"x": f(3, 4)})
    assert operators(m) == ["Gelu"]
    assert [p.fused_into for p in work.patterns] == ["Gelu"]


def test_what_is_only_like_a_gelu_stays() -> None:
    weights = {k: np.float32(v) for k, v in NUMBERS.items()} | {"half": np.float32(0.6)}
    m = model(f"g (float[n,4] x) => (float[n,4] y) {{ {GELU['erf']} }}", **weights)
    assert applied(m, "activations", {"x": f(3, 4)}).changes == 0


def test_an_opset_without_gelu_is_the_reason_why_it_stays() -> None:
    weights = {k: np.float32(v) for k, v in NUMBERS.items()}
    m = model(f"g (float[n,4] x) => (float[n,4] y) {{ {GELU['erf']} }}", 17, **weights)
    work = applied(m, "activations", {"x": f(3, 4)}, target="portable")
    assert "from opset 20 on, the model has 17" in work.patterns[0].reason


NORM = """m = ReduceMean<keepdims=1>(x, last)  d = Sub(x, m)  s = Pow(d, two)  v = ReduceMean<keepdims=1>(s, last)
          e = Add(v, eps)  r = Sqrt(e)  q = Div(d, r)  w = Mul(q, scale)  y = Add(w, bias)"""
RMS = """s = Mul(x, x)  v = ReduceMean<keepdims=1>(s, last)  e = Add(v, eps)  r = Sqrt(e)  q = Reciprocal(r)
         u = Mul(x, q)  y = Mul(scale, u)"""


def norm(text: str, opset: int, **more: np.ndarray) -> ir.Model:
    weights = {"last": np.int64([-1]), "two": np.float32(2), "eps": np.float32(1e-5), "scale": f(8), "bias": f(8)}
    return model(f"g (float[n,3,8] x) => (float[n,3,8] y) {{ {text} }}", opset, **weights | more)


@pytest.mark.parametrize(("text", "operator"), [(NORM, "LayerNormalization"), (RMS, "RMSNormalization")])
def test_a_normalization_that_is_written_out_is_one_operator(text: str, operator: str) -> None:
    m = norm(text, 23)
    applied(m, "dead_code", {"x": f(2, 3, 8)}, after="normalizations")
    assert operators(m) == [operator]


def test_a_normalization_of_another_axis_stays() -> None:
    m = norm(NORM, 23, last=np.int64([1]))
    assert applied(m, "normalizations", {"x": f(2, 3, 8)}).changes == 0


def test_rms_normalization_is_left_where_the_opset_has_none() -> None:
    work = applied(norm(RMS, 20), "normalizations", {"x": f(2, 3, 8)})
    assert work.changes == 0
    assert "opset 23" in work.patterns[0].reason


ATTENTION = "k2 = Transpose<perm=[0,1,3,2]>(k)  s = MatMul(q, k2)  t = Mul(s, scale)  {mask}  p = Softmax<axis=-1>(u)"
MASKS = {
    "none": "u = Identity(t)",
    "added": "u = Add(t, m)",
    "chosen": "c = Greater(m, zero)  u = Where(c, low, t)",
    "kept": "c = Greater(zero, m)  u = Where(c, t, low)",
}


def attention(mask: str, opset: int, end: str = "y = MatMul(p, v)", rows: str = "5") -> ir.Model:
    heads = "float[2,3,5,4] q, float[2,3,6,4] k, float[2,3,6,4] v"
    text = f"g ({heads}, float[2,1,{rows},6] m) => (float[2,3,5,4] y) {{ {ATTENTION.format(mask=MASKS[mask])}  {end} }}"
    m = model(text, opset, scale=np.float32(0.3), zero=np.float32(0), low=np.float32(-1e9))
    applied(m, "redundant_operators", None)
    return m


def qkv(rows: int = 5) -> dict[str, np.ndarray]:
    mask = f(2, 1, rows, 6)
    mask[0, 0, 0] = 9  # all keys of a row
    return {"q": f(2, 3, 5, 4), "k": f(2, 3, 6, 4), "v": f(2, 3, 6, 4), "m": mask}


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_that_is_written_out_is_one_operator(mask: str, rows: int) -> None:
    m = attention(mask, 23, rows=str(rows))
    applied(m, "dead_code", qkv(rows), after="attention")
    assert operators(m).count("Attention") == 1
    assert not {"MatMul", "Softmax"} & set(operators(m))


def test_rows_with_every_key_masked_are_zeros_as_before() -> None:
    m = attention("added", 23, "n = IsNaN(p)  w = Where(n, zero, p)  y = MatMul(w, v)")
    feeds = qkv()
    feeds["m"][1, 0, 2] = -np.inf
    applied(m, "dead_code", feeds, after="attention")
    assert operators(m) == ["Attention"]


def test_rows_masked_with_the_lowest_number_are_a_mean_as_before() -> None:
    lowest = np.finfo(np.float32).min
    text = """g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, bool[1,1,3,3] c) => (float[1,2,3,4] y)
    { k2 = Transpose<perm=[0,1,3,2]>(k)  s = MatMul(q, k2)  m = Where(c, zero, low)  t = Add(s, m)
      p = Softmax<axis=-1>(t)  y = MatMul(p, v) }"""
    m = model(text, 23, zero=np.float32(0), low=lowest)
    masked = np.ones((1, 1, 3, 3), bool)
    masked[0, 0, 1] = False
    feeds = {"q": f(1, 2, 3, 4), "k": f(1, 2, 3, 4), "v": f(1, 2, 3, 4), "c": masked}
    applied(m, "dead_code", feeds, after="attention")
    assert "Attention" in operators(m)


def test_heads_that_are_laid_apart_for_attention_go_into_it() -> None:
    text = """g (float[b,s,12] x) => (float[b,s,12] y)
    { a = Reshape(x, heads)  q = Transpose<perm=[0,2,1,3]>(a)  k = Transpose<perm=[0,2,3,1]>(a)
      t = MatMul(q, k)  p = Softmax<axis=-1>(t)  o = MatMul(p, q)  r = Transpose<perm=[0,2,1,3]>(o)
      y = Reshape(r, rows) }"""
    m = model(text, 23, heads=np.int64([0, 0, 3, 4]), rows=np.int64([0, 0, 12]))
    passes = "attention dead_code transposes attention"
    applied(m, "dead_code", {"x": f(2, 5, 12)}, after=passes)
    assert operators(m) == ["Attention"]


@pytest.mark.parametrize(
    ("opset", "target", "words"), [(20, "portable", "from opset 23 on"), (23, "openvino", "OpenVINO")]
)
def test_attention_is_left_with_a_reason(opset: int, target: Target, words: str) -> None:
    m = attention("added", opset)
    work = applied(m, "attention", qkv(), target=target)
    assert work.changes == 0
    assert words in work.patterns[0].reason


def test_a_softmax_over_another_axis_is_no_attention() -> None:
    m = attention("none", 23)
    softmax = next(n for n in m.graph if n.op_type == "Softmax")
    softmax.attributes["axis"] = ir.AttrInt64("axis", 2)
    work = applied(m, "attention", qkv())
    assert work.changes == 0
    assert "not over the keys" in work.patterns[0].reason


def test_the_opset_is_raised_for_attention_and_for_nothing() -> None:
    m = attention("added", 17)
    applied(m, "newer_opset", qkv())
    assert m.opset_imports[""] == 23
    plain = model("g (float[3] x) => (float[3] y) { y = Relu(x) }", 17)
    assert applied(plain, "newer_opset", {"x": f(3)}).changes == 0
    assert plain.opset_imports[""] == 17


ROTARY = """a, b = Split<axis=-1, num_outputs=2>(x)  n = Neg(b)  r = Concat<axis=-1>(n, a)  s = Mul(r, sin)
            c = Mul(x, cos)  y = Add(c, s)"""
SLICED = """a = Slice(x, zero, half, last)  b = Slice(x, half, end, last)  n = Neg(b)  r = Concat<axis=-1>(n, a)
            s = Mul(r, sin)  c = Mul(x, cos)  y = Add(c, s)"""


def rotary(text: str, opset: int = 23, cache: tuple[int, ...] = (5, 4), **more: np.ndarray) -> ir.Model:
    angle = f(*cache)
    angle = np.concatenate((angle, angle), -1)
    ints = {"zero": [0], "half": [4], "end": [2**31 - 1], "last": [3]}
    weights = {"cos": np.cos(angle), "sin": np.sin(angle), **{n: np.int64(v) for n, v in ints.items()}}
    return model(f"g (float[b,3,5,8] x) => (float[b,3,5,8] y) {{ {text} }}", opset, **weights | more)


@pytest.mark.parametrize("cache", [(5, 4), (1, 5, 4), (1, 1, 5, 4)])
@pytest.mark.parametrize("text", [ROTARY, SLICED])
def test_a_rotary_embedding_that_is_written_out_is_one_operator(text: str, cache: tuple[int, ...]) -> None:
    m = rotary(text, cache=cache)
    work = applied(m, "rotary", {"x": f(2, 3, 5, 8)})
    applied(m, "constant_folding", {"x": f(2, 3, 5, 8)}, after="dead_code")
    assert [p.fused_into for p in work.patterns] == ["RotaryEmbedding"]
    assert operators(m).count("RotaryEmbedding") == 1
    assert "Neg" not in operators(m)


def test_a_rotary_embedding_whose_halves_differ_stays() -> None:
    work = applied(rotary(ROTARY, cos=f(5, 8)), "rotary", {"x": f(2, 3, 5, 8)})
    assert work.changes == 0
    assert "halves" in work.patterns[0].reason


def test_what_an_engine_joins_itself_is_reported() -> None:
    m = model("g (float[n,4] x) => (float[n,4] y) { a = Sigmoid(x)  y = Mul(a, x) }")
    work = applied(m, "other_patterns", {"x": f(2, 4)})
    assert [(p.kind, p.fused_into) for p in work.patterns] == [("SiLU", "")]
    assert "ONNX Runtime joins it" in work.patterns[0].reason
