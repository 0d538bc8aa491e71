"""What is constant is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from torchport.editing.fold import fold
from torchport.errors import OptionError
from torchport.inspection.lint.linter import lint

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def model(text: str, opset: int = 20, ir_version: int = 9) -> ir.Model:
    head = f'<ir_version: {ir_version}, opset_import: ["": {opset}, "my": 1]>'
    return ir.from_proto(onnx.parser.parse_model(f"{head} {text}"))


def answer(given: ir.Model, *arrays: Any) -> list[Any]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in lint(given) if f.severity == "error"] == []
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def operators(given: ir.Model) -> list[str]:
    return [n.op_type for n in given.graph]


def test_what_comes_of_weights_alone_is_computed_and_the_weights_go() -> None:
    given = model("""g (float[2,3] x) => (float[2,2] y)
        <float[2,3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, float k = {2.0}>
        { t = Transpose<perm = [1, 0]>(w)  s = Mul(t, k)  y = MatMul(x, s) }""")
    before = answer(given, X)[0]
    assert fold(given) == 2
    assert operators(given) == ["MatMul"]
    assert list(given.graph.initializers) == ["s"]
    assert given.graph.initializers["s"].shape == [3, 2]
    assert np.allclose(answer(given, X)[0], before)
    assert fold(given) == 0


def test_a_weight_that_the_caller_may_give_is_not_constant() -> None:
    given = model("g (float[3] x, float[3] w = {1.0, 2.0, 3.0}) => (float[3] y) { n = Neg(w)  y = Add(x, n) }")
    assert fold(given) == 0
    session = ort.InferenceSession(ir.to_proto(given).SerializeToString(), providers=["CPUExecutionProvider"])
    ones = np.ones(3, np.float32)
    assert np.array_equal(session.run(None, {"x": ones, "w": ones})[0], np.zeros(3))


def test_a_tiny_number_is_not_zero() -> None:
    given = model(
        "g (float[3] x) => (float[3] y) <float e = {1e-8}> { n = Neg(e)  m = Neg(n)  d = Add(x, m)  y = Div(x, d) }"
    )
    assert fold(given) == 2
    assert np.array_equal(answer(given, np.zeros(3, np.float32))[0], np.zeros(3))


def test_known_sizes_count_as_constant_in_a_shape_that_is_else_dynamic() -> None:
    given = model("""g (float[N,3,4] x) => (float[M,K] y)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] minus = {-1}> {
        s = Shape(x)  a = Gather(s, one)  b = Gather(s, two)  p = Mul(a, b)
        t = Concat<axis = 0>(minus, p)  y = Reshape(x, t) }""")
    assert fold(given) == 4
    assert operators(given) == ["Reshape"]
    assert answer(given, np.ones((2, 3, 4), np.float32))[0].shape == (2, 12)


def test_a_size_that_is_dynamic_stays() -> None:
    given = model("""g (float[N,3] x) => (int64[2] y) <int64[1] zero = {0}, int64[1] one = {1}> {
        s = Shape(x)  a = Gather(s, zero)  t = Concat<axis = 0>(a, one)  y = Identity(t) }""")
    assert fold(given) == 0
    assert answer(given, X)[0].tolist() == [2, 1]


def test_shapes_get_known_as_sizes_do() -> None:
    given = model("""g (float[2,6] x) => (float[3,4] y) {
        s = Shape(x)  z = Constant<value_ints = [0]>()  n = Gather(s, z)  two = Constant<value_ints = [2]>()
        f = Mul(n, two)  three = Constant<value_ints = [3]>()  t = Concat<axis = 0>(three, f)  r = Reshape(x, t)
        q = Shape(r)  y = Reshape(r, q) }""")
    fold(given)
    assert operators(given) == ["Reshape", "Reshape"]
    assert given.graph[0].outputs[0].shape == [3, 4]
    assert answer(given, np.ones((2, 6), np.float32))[0].shape == (3, 4)


def test_an_output_stays_one_and_keeps_its_name() -> None:
    given = model(
        "g (float[3] x) => (float[3] y, float[3] z) <float[3] w = {1.0, 2.0, 3.0}> { y = Neg(w)  z = Add(x, y) }"
    )
    assert fold(given) == 1
    assert [v.name for v in given.graph.outputs] == ["y", "z"]
    y, z = answer(given, np.ones(3, np.float32))
    assert y.tolist() == [-1, -2, -3]
    assert z.tolist() == [0, -1, -2]


def test_branches_loops_and_functions_are_folded_too() -> None:
    given = model("""g (float[2] x, bool c, int64 n) => (float[2] y, float[2] z) <float k = {3.0}> {
        f = my.F(x)
        y = If (c) <then_branch = t () => (float[2] q) { m = Neg(k)  q = Mul(f, m) },
                    else_branch = e () => (float[2] r) { r = Neg(f) }>
        z = Loop (n, c, x) <body = b (int64 i, bool d, float[2] s) => (bool d2, float[2] s2) {
            d2 = Identity(d)  p = Exp(k)  s2 = Add(s, p) }> }
        <domain: "my", opset_import: ["": 20]> F <a: float = 2.0> (x) => (y) {
            c = Constant<value = float {2.0}>()  d = Sqrt(c)  e = Constant<value_float: float = @a>()  g = Neg(e)
            h = Mul(d, g)  y = Mul(x, h) }""")
    x = np.float32([1, 2])
    before = answer(given, x, np.array(True), np.array(2))
    assert fold(given) == 3
    for one, other in zip(answer(given, x, np.array(True), np.array(2)), before, strict=True):
        assert np.allclose(one, other)


def test_a_condition_that_is_known_leaves_one_branch() -> None:
    given = model("""g (float[2,3] x) => (float[2,3] y) <int64 rank = {2}, int64 two = {2}> {
        a = Neg(x)  c = Equal(rank, two)
        y = If (c) <then_branch = t () => (float[2,3] q) <float[3] w = {1.0, 2.0, 3.0}> { h = Mul(a, w)  q = Abs(h) },
                    else_branch = e () => (float[2,3] r) { r = Neg(a) }> }""")
    assert fold(given) == 2
    assert operators(given) == ["Neg", "Mul", "Abs"]
    assert np.array_equal(answer(given, X)[0], np.abs(X * np.float32([1, 2, 3])))


def test_large_tensors_are_neither_read_nor_made() -> None:
    class Unread(ir.Tensor):  # type: ignore[type-arg]
        def numpy(self) -> Any:
            raise AssertionError("read")

    given = model("""g (float[1024] x, float[1024] w) => (float[1024] y, float[9,9999] z) <int64[2] s = {9, 9999}>
        { t = Neg(w)  y = Add(x, t)  z = ConstantOfShape(s) }""")
    weight = given.graph.inputs.pop(1)
    weight.const_value = Unread(np.ones(1024, np.float32), name="w")
    given.graph.register_initializer(weight)
    assert fold(given, limit_bytes=4095) == 0
    weight.const_value = ir.Tensor(np.ones(1024, np.float32), name="w")
    assert fold(given, limit_bytes=4096) == 1
    assert operators(given) == ["Add", "ConstantOfShape"]


def test_random_numbers_quantization_and_operators_of_others_stay() -> None:
    given = model("""g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float s = {0.5}, uint8 z = {0}> {
        r = RandomNormalLike(w)  q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  m = my.Foo(w)
        a = Add(r, d)  b = Add(a, m)  y = Add(b, x) }""")
    assert fold(given) == 0


def test_an_old_model_keeps_its_weights_inputs_and_gets_constants() -> None:
    given = model(
        "g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {1.0, 2.0}>()  n = Neg(c)  y = Add(x, n) }",
        8,
        3,
    )
    assert fold(given) == 1
    assert not given.graph.initializers
    assert answer(given, np.float32([1, 2]))[0].tolist() == [0, 0]


FLOATS, INTS = "float[2,3] a = {-1.5, 0.5, 2.5, -0.0, 7.25, 3.0}", "int64[2,3] i = {-7, 7, 3, -3, 5, 0}"
STEPS = [
    *(f"o = {op}(a)" for op in ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "IsNaN", "Neg", "NonZero", "Reciprocal")),
    *(f"o = {op}(a)" for op in ("Relu", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Tanh", "Log", "Flatten", "Trilu")),
    *(f"o = {op}(a, b)" for op in ("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Equal", "Greater", "LessOrEqual")),
    *(f"o = {op}(i, j)" for op in ("Add", "Div", "Max", "Min", "Mul", "Mod", "Sub", "Less", "GreaterOrEqual")),
    *(f"o = {op}(a)" for op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")),
    *(f"o = {op}<keepdims = 0>(a, one)" for op in ("ReduceMax", "ReduceMean", "ReduceSum")),
    *("o = Mod<fmod = 1>(a, b)", "o = Mod<fmod = 1>(i, j)", "o = Cast<to = 7>(a)", "o = Cast<to = 9>(a)"),
    *("o = Cast<to = 10>(a)", "o = CastLike(i, a)", "o = Clip(a, z)", "o = CumSum(a, k)"),
    *("o = CumSum<exclusive = 1, reverse = 1>(a, k)", "o = Gather<axis = 1>(a, one)", "o = Gather(a, minus)"),
    *("o = GatherElements<axis = 1>(a, g)", "o = GatherND(a, one)", "o = Slice(a, minus, big, one, one)"),
    *("o = Slice(a, one, big, one)", "o = Transpose(a)", "o = Unsqueeze(a, minus)", "o = Tile(a, r)"),
    *("o = Expand(a, e)", "o = Pad(a, p)", "o = Pad<mode = \"reflect\">(a, p)", "o, q = Split<axis = 1>(a, h)"),
    *("o = Range(k, five, k)", "o = Where(c, a, b)", "o = MatMul(a, u)"),
    "t = Transpose(a)  o = Gemm<alpha = 0.5>(a, t)",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_what_is_computed_is_what_onnxruntime_computes(step: str) -> None:
    weights = f"""{FLOATS}, {INTS},
        float[3] b = {{2.0, -0.5, 3.0}}, int64[3] j = {{2, -2, 4}}, int64[1] one = {{1}}, float z = {{0.0}},
        int64[1] minus = {{-1}}, int64[1] big = {{9223372036854775807}}, int64 k = {{1}}, int64 five = {{5}},
        int64[2,1] g = {{2, -1}}, int64[2] r = {{2, 1}}, int64[3] e = {{2, 2, 3}}, int64[4] p = {{0, 1, 1, 2}},
        int64[2] h = {{1, 2}}, bool[3] c = {{1, 0, 1}}, float[3,1] u = {{1.0, 2.0, 3.0}}"""
    given = model(f"g () => (o) <{weights}> {{ {step} }}")
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(given))
    before = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})[0]
    given = ir.from_proto(proto)
    assert fold(given) == len(step.split("  "))
    assert operators(given) == ["Constant"]
    after = given.graph.outputs[0].producer().attributes["value"].as_tensor().numpy()
    assert after.dtype == before.dtype
    assert np.allclose(after, before, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_what_engines_do_not_agree_on_is_left_to_them() -> None:
    given = model("""g () => (int64[1] y, int32[2] z, float[n] s)
        <int64[1] a = {1}, int64[1] b = {0}, int64[1] back = {-1}, float[2] f = {1e20, -1e20}>
        { y = Div(a, b)  z = Cast<to = 6>(f)  s = Slice(f, a, b, b, back) }""")
    assert fold(given) == 0


@pytest.mark.parametrize("limit", [-1, 1.5, True, "much"])
def test_a_limit_that_cannot_be_meant_is_refused(limit: Any) -> None:
    with pytest.raises(OptionError, match="limit_bytes cannot be"):
        fold(model("g (float[2] x) => (float[2] y) { y = Neg(x) }"), limit_bytes=limit)


def test_a_branch_is_taken_though_nobody_knows_the_rank_of_what_it_reads() -> None:
    given = model(
        "g (float[n,4] x, int64[r] s) => (float[n,4] y) <bool yes = {1}, int64[2] back = {-1, 4}> { v = Reshape(x, s)"
        "b = If(yes) <then_branch = t () => (float[n,4] p) { p = Reshape(v, back) },"
        "             else_branch = e () => (float[n,4] q) { q = Reshape(x, back) }>  y = Relu(b) }"
    )
    assert fold(given) >= 1
    assert "If" not in [node.op_type for node in given.graph]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert answer(given, x, np.array([2, 2, 2]))[0].tolist() == x.tolist()
