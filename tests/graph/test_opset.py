"""Converting a model to another opset keeps its numbers, or is refused with the reason."""

# ruff: noqa: E501  (a model is written as one line of onnx's text form)

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from torchport.errors import OpsetError, OptionError
from torchport.graph import opset
from torchport.graph.opset_rules import review, schemas, table

Arrays = list[np.ndarray[Any, Any]]
ort.set_default_logger_severity(4)


def parse(body: str, version: int, ir_version: int = 8) -> ir.Model:
    """A model from onnx's text form, its types inferred by nobody yet."""
    head = f'<ir_version: {ir_version}, opset_import: ["" : {version}]>\n'
    return ir.from_proto(onnx.parser.parse_model(head + body))


def session(model: ir.Model | onnx.ModelProto) -> ort.InferenceSession:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: ir.Model | onnx.ModelProto, feeds: dict[str, Any]) -> Arrays:
    return list(session(model).run(None, feeds))


def assert_same(got: Sequence[Any], want: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def check_conversion(model: ir.Model, feeds: dict[str, Any], targets: Sequence[int], **limits: float) -> None:
    """Each target gives a valid model of exactly that opset, and the same numbers."""
    before = ir.to_proto(model).SerializeToString()
    want = run(model, feeds)
    for target in targets:
        converted = opset.convert(model, target)
        proto = ir.to_proto(converted)
        assert {o.domain: o.version for o in proto.opset_import}[""] == target
        onnx.checker.check_model(proto, full_check=True)
        assert_same(run(proto, feeds), want, **limits)
    assert ir.to_proto(model).SerializeToString() == before


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SPECIAL = np.array([-np.inf, -2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.4999, np.nan, np.inf], dtype=np.float32)

# name, opset, text, feeds, targets
RULES: list[tuple[str, int, str, dict[str, Any], Sequence[int]]] = [
    *(
        (
            f"{op}-axes",
            18,
            f"g (float[2,3,4] x) => (float[a,b] y) "
            f"{{ axes = Constant<value = int64[1] {{-2}}>() y = {op}<keepdims=0>(x, axes) }}",
            {"x": np.abs(floats(2, 3, 4))},
            (17, 13, 12, 11, 10, 7, 19, 26),
        )
        for op in (
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceSumSquare",
            "ReduceSum",
        )
    ),
    (
        "reduce-nothing",
        18,
        "g (float[2,3] x) => (float[2,3] y) { y = ReduceMean<noop_with_empty_axes=1>(x) }",
        {"x": floats(2, 3)},
        (17, 10, 20),
    ),
    (
        "reduce-all",
        18,
        "g (float[2,3] x) => (float[1,1] y) { y = ReduceMax(x) }",
        {"x": floats(2, 3)},
        (17, 10, 7, 20),
    ),
    (
        "reduce-bool",
        20,
        "g (bool[2,3] x) => (bool[2] y) { axes = Constant<value = int64[1] {1}>() y = ReduceMax<keepdims=0>(x, axes) }",
        {"x": floats(2, 3) > 0},
        (19, 17, 11, 9),
    ),
    (
        "squeeze-unsqueeze",
        18,
        """g (float[2,1,3] x) => (float[1,2,3,1] y) { a = Constant<value = int64[1] {-2}>() s = Squeeze(x, a)
           u = Constant<value = int64[2] {0,-1}>() y = Unsqueeze(s, u) }""",
        {"x": floats(2, 1, 3)},
        (13, 12, 11, 10, 7, 22),
    ),
    (
        "split-uneven",
        18,
        "g (float[7,2] x) => (float[3,2] a, float[3,2] b, float[1,2] c) { a, b, c = Split<num_outputs=3>(x) }",
        {"x": floats(7, 2)},
        (17, 13, 12, 10, 7, 20),
    ),
    (
        "split-uneven-dynamic",
        18,
        "g (float[N,2] x) => (float[A,2] a, float[B,2] b, float[C,2] c) { a, b, c = Split<num_outputs=3>(x) }",
        {"x": floats(7, 2)},
        (17, 13),
    ),
    (
        "pad-axes",
        19,
        """g (float[2,3,4] x) => (float[A,B,C] y) { p = Constant<value = int64[4] {1,2,0,-1}>()
           v = Constant<value = float {1.5}>() a = Constant<value = int64[2] {-1,0}>() y = Pad(x, p, v, a) }""",
        {"x": floats(2, 3, 4)},
        (18, 17, 13, 11, 10, 7, 21),
    ),
    (
        "pad-axes-dynamic",
        18,
        """g (float[2,3,4] x, int64[4] p) => (float[A,B,C] y) { a = Constant<value = int64[2] {-1,0}>()
           y = Pad<mode="edge">(x, p, , a) }""",
        {"x": floats(2, 3, 4), "p": np.array([1, 2, 0, 3])},
        (17, 11),
    ),
    (
        "clip",
        18,
        """g (float[10] x) => (float[10] y, float[10] z) { a = Constant<value = float {-1.5}>()
           b = Constant<value = float {2}>() y = Clip(x, a, b) z = Clip(x, , b) }""",
        {"x": SPECIAL},
        (13, 12, 11, 10, 7, 22),
    ),
    (
        "clip-computed",
        18,
        "g (float[5] x, float l) => (float[5] y) { y = Clip(x, l) }",
        {"x": floats(5), "l": np.array(0.1, np.float32)},
        (11, 10, 8),
    ),
    (
        "clip-int",
        18,
        "g (int64[5] x) => (int64[5] y) { a = Constant<value = int64 {-1}>() b = Constant<value = int64 {2}>() y = Clip(x, a, b) }",
        {"x": np.array([-5, -1, 0, 2, 9])},
        (12, 11, 10, 9),
    ),
    (
        "slice",
        18,
        """g (float[4,5] x) => (float[A,B] y) { s = Constant<value = int64[1] {1}>()
           e = Constant<value = int64[1] {-1}>() a = Constant<value = int64[1] {-1}>() y = Slice(x, s, e, a) }""",
        {"x": floats(4, 5)},
        (12, 11, 10, 9, 7, 22),
    ),
    (
        "topk",
        18,
        """g (float[4,5] x) => (float[4,2] v, int64[4,2] i) { k = Constant<value = int64[1] {2}>()
           v, i = TopK<axis=-1, largest=0>(x, k) }""",
        {"x": floats(4, 5)},
        (11, 10, 9, 7, 24),
    ),
    *(
        (
            f"{op}-axis-{axis}",
            18,
            f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {op}<axis={axis}>(x) }}",
            {"x": floats(2, 3, 4)},
            (13, 12, 11, 10, 7),
        )
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (-1, 1, 0)
    ),
    *(
        (
            f"layer-normalization-{axis}",
            17,
            f"g (float[2,3,4] x, {kind} s, {kind} b) => (float[2,3,4] y) {{ y = LayerNormalization<axis={axis}>(x, s, b) }}",
            {"x": floats(2, 3, 4) + 50, "s": floats(*shape), "b": floats(*shape, seed=1)},
            (16, 13, 12, 11, 10, 7),
        )
        for axis, kind, shape in ((-1, "float[4]", (4,)), (1, "float[3,4]", (3, 4)))
    ),
    (
        "group-normalization",
        21,
        "g (float[2,6,5] x, float[6] s, float[6] b) => (float[2,6,5] y) { y = GroupNormalization<num_groups=3>(x, s, b) }",
        {"x": floats(2, 6, 5) + 3, "s": floats(6), "b": floats(6, seed=1)},
        (20, 18, 17, 13, 11, 9, 7),
    ),
    (
        "group-normalization-18",
        18,
        "g (float[2,6,5] x, float[3] s, float[3] b) => (float[2,6,5] y) { y = GroupNormalization<num_groups=3>(x, s, b) }",
        {"x": floats(2, 6, 5), "s": floats(3), "b": floats(3, seed=1)},
        (21, 23),
    ),
    (
        "gelu",
        20,
        'g (float[9] x) => (float[9] y, float[9] z) { y = Gelu(x) z = Gelu<approximate="tanh">(x) }',
        {"x": floats(9)},
        (19, 17, 14, 13, 11, 9),
    ),
    ("mish", 18, "g (float[9] x) => (float[9] y) { y = Mish(x) }", {"x": floats(9)}, (17, 13, 7)),
    (
        "hard-swish",
        14,
        "g (float[9] x) => (float[9] y) { y = HardSwish(x) }",
        {"x": floats(9) * 4},
        (13, 11, 7),
    ),
    (
        "cast-like",
        15,
        "g (float[4] x, int32[1] t) => (int32[4] y) { y = CastLike(x, t) }",
        {"x": floats(4) * 9, "t": np.zeros(1, np.int32)},
        (14, 9, 19),
    ),
    *(
        (
            f"trilu-{name}-{upper}",
            14,
            f"g ({kind} x) => ({kind} y) {{ k = Constant<value = int64 {{{k}}}>() y = Trilu<upper={upper}>(x, k) }}",
            {"x": data},
            (13, 12, 11, 10, 9),
        )
        for upper, k in ((0, 0), (1, 1), (0, -1))
        for name, kind, data in (
            ("static", "float[2,3,4]", floats(2, 3, 4)),
            ("dynamic", "float[B,H,W]", floats(2, 3, 4)),
            ("bool", "bool[H,W]", np.ones((3, 5), dtype=bool)),
        )
    ),
    (
        "shape-part",
        15,
        "g (float[2,N,4] x) => (int64[1] y, int64[A] z) { y = Shape<start=-2, end=-1>(x) z = Shape<end=9>(x) }",
        {"x": floats(2, 3, 4)},
        (14, 13, 10, 9, 7, 19),
    ),
    (
        "reshape-allowzero-computed",
        14,
        "g (float[N,4] x, int64[2] s) => (float[A,B] y) { y = Reshape<allowzero=1>(x, s) }",
        {"x": floats(0, 4), "s": np.array([2, 0])},
        (13, 11, 7),
    ),
    (
        "reshape-allowzero-constant",
        18,
        "g (float[2,6] x) => (float[3,4] y) { s = Constant<value = int64[2] {3,4}>() y = Reshape<allowzero=1>(x, s) }",
        {"x": floats(2, 6)},
        (13, 7),
    ),
    (
        "cumsum",
        14,
        """g (float[2,N,3] x) => (float[2,N,3] y, float[2,N,3] z) { a = Constant<value = int64 {-2}>()
           y = CumSum(x, a) z = CumSum<exclusive=1, reverse=1>(x, a) }""",
        {"x": floats(2, 5, 3)},
        (13, 11, 10, 9),
    ),
    (
        "batch-normalization",
        15,
        "g (float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,4] y) { y = BatchNormalization(x, s, b, m, v) }",
        {"x": floats(2, 3, 4), "s": floats(3), "b": floats(3), "m": floats(3), "v": np.ones(3, np.float32)},
        (14, 13, 9, 8, 7, 20),
    ),
    (
        "dropout",
        13,
        "g (float[3] x) => (float[3] y) { r = Constant<value = float {0.9}>() y = Dropout(x, r) }",
        {"x": floats(3)},
        (12, 11, 9, 7, 22),
    ),
    (
        "pow-mixed",
        15,
        "g (float[3] x) => (float[3] y) { e = Constant<value = int64 {3}>() y = Pow(x, e) }",
        {"x": floats(3)},
        (13, 12, 11, 7),
    ),
    (
        "greater-or-equal",
        16,
        "g (float[10] x, float[10] y) => (bool[10] a, bool[10] b) { a = GreaterOrEqual(x, y) b = LessOrEqual(x, y) }",
        {"x": SPECIAL, "y": np.roll(SPECIAL, 1)},
        (15, 12, 11, 10, 9, 7),
    ),
    (
        "equal-floats",
        13,
        "g (float[10] x, float[10] y) => (bool[10] a) { a = Equal(x, y) }",
        {"x": SPECIAL, "y": np.where(np.arange(10) % 3, SPECIAL, 0).astype(np.float32)},
        (11, 10, 9, 8, 7),
    ),
    (
        "less-int",
        13,
        "g (int32[3] x, int32[3] y) => (bool[3] a) { a = Less(x, y) }",
        {"x": np.array([1, 2**31 - 1, -(2**31)], np.int32), "y": np.array([1, 2**31 - 2, 5], np.int32)},
        (9, 8, 7),
    ),
    (
        "max-int",
        13,
        "g (int64[3] x, int64[3] y, int64[1] z) => (int64[3] a, int64[3] b) { a = Max(x, y, z) b = Min(x, y, z) }",
        {"x": np.array([1, 2**60, -7]), "y": np.array([5, 2**60 + 1, -9]), "z": np.array([0])},
        (12, 11, 9),
    ),
    (
        "range",
        11,
        """g (int64 n) => (int64[A] a, int64[B] b) { z = Constant<value = int64 {0}>() o = Constant<value = int64 {2}>()
           a = Range(z, n, o) m = Constant<value = int64 {-3}>() b = Range(n, z, m) }""",
        {"n": np.array(7)},
        (10, 9, 20),
    ),
    (
        "range-empty",
        11,
        "g (int64 n) => (int64[A] a) { z = Constant<value = int64 {0}>() o = Constant<value = int64 {1}>() a = Range(z, n, o) }",
        {"n": np.array(-3)},
        (10, 9),
    ),
    (
        "gather-from-back",
        13,
        "g (float[N,3] x, int64[2] i) => (float[2,3] y, float[N,1] z) { y = Gather(x, i) c = Constant<value = int64[1] {-1}>() z = Gather<axis=1>(x, c) }",
        {"x": floats(5, 3), "i": np.array([-1, 2])},
        (11, 10, 8, 7, 20),
    ),
    (
        "scatter-elements",
        18,
        "g (float[5] x, int64[2] i, float[2] u) => (float[5] y) { y = ScatterElements(x, i, u) }",
        {"x": floats(5), "i": np.array([-1, 2]), "u": floats(2)},
        (16, 15, 13, 11, 10, 9),
    ),
    (
        "one-hot",
        13,
        """g (int64[3] i) => (float[4,3] y) { d = Constant<value = int64 {4}>() v = Constant<value = float[2] {0,5}>()
           y = OneHot<axis=-2>(i, d, v) }""",
        {"i": np.array([-1, 2, 7])},
        (11, 10, 9),
    ),
    (
        "gemm-without-c",
        13,
        "g (float[2,3] x, float[4,3] w) => (float[2,4] y) { y = Gemm<transB=1, alpha=0.5>(x, w) }",
        {"x": floats(2, 3), "w": floats(4, 3)},
        (11, 10, 9, 7, 20),
    ),
    (
        "constant-values",
        13,
        "g (float[2] x) => (float[2] y, int64[2] z) { c = Constant<value_floats = [1.5, 2.5]>() y = Add(x, c) z = Constant<value_ints = [3, 4]>() }",
        {"x": floats(2)},
        (12, 11, 7),
    ),
    (
        "special-values",
        13,
        "g (float[10] x) => (bool[10] a, bool[10] b, float[10] c) { a = IsNaN(x) b = IsInf<detect_negative=0>(x) c = Round(x) }",
        {"x": SPECIAL},
        (12, 11, 10, 9),
    ),
    (
        "is-nan-is-inf-oldest",
        13,
        "g (float[10] x) => (bool[10] a, bool[10] b) { a = IsNaN(x) b = IsInf(x) }",
        {"x": SPECIAL},
        (9, 8, 7),
    ),
    ("sign", 13, "g (float[3] x) => (float[3] a) { a = Sign(x) }", {"x": floats(3)}, (9, 8, 7)),
    (
        "constant-of-shape",
        13,
        "g (int64[2] s) => (int64[A,B] a) { a = ConstantOfShape<value = int64[1] {7}>(s) }",
        {"s": np.array([2, 3])},
        (9, 8, 19),
    ),
    (
        "depth-to-space",
        13,
        'g (float[1,8,N,3] x) => (float[1,2,A,6] y) { y = DepthToSpace<mode="CRD", blocksize=2>(x) }',
        {"x": floats(1, 8, 2, 3)},
        (11, 10, 9, 7),
    ),
    (
        "max-pool-ceil",
        22,
        "g (float[1,2,7,7] x) => (float[1,2,A,B] y) { y = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x) }",
        {"x": floats(1, 2, 7, 7)},
        (21, 12, 11, 10),
    ),
    (
        "average-pool",
        22,
        "g (float[1,2,8,8] x) => (float[1,2,A,B] y) { y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1, dilations=[1,1]>(x) }",
        {"x": floats(1, 2, 8, 8)},
        (19, 18, 11, 10, 7),
    ),
    (
        "grid-sample",
        20,
        'g (float[1,2,5,5] x, float[1,3,3,2] f) => (float[1,2,3,3] y) { y = GridSample<mode="cubic", padding_mode="border">(x, f) }',
        {"x": floats(1, 2, 5, 5), "f": np.tanh(floats(1, 3, 3, 2))},
        (19, 16, 22),
    ),
    (
        "quantize",
        19,
        """g (float[2,3] x) => (float[2,3] y) { s = Constant<value = float {0.1}>() z = Constant<value = int8 {3}>()
           q = QuantizeLinear<axis=0, saturate=1>(x, s, z) y = DequantizeLinear(q, s, z) }""",
        {"x": floats(2, 3)},
        (18, 13, 10, 21),
    ),
    (
        "resize-sizes-of-some-axes",
        18,
        """g (float[1,2,4,N] x) => (float[1,2,8,6] y) { s = Constant<value = int64[2] {8,6}>()
           y = Resize<mode="linear", axes=[2,3]>(x, , , s) }""",
        {"x": floats(1, 2, 4, 3)},
        (17, 13, 12, 11, 19),
    ),
    (
        "resize-nearest",
        19,
        """g (float[1,2,4,3] x) => (float[1,2,A,B] y) { s = Constant<value = float[4] {1,1,2,3}>()
           y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s) }""",
        {"x": floats(1, 2, 4, 3)},
        (18, 17, 13, 12, 11, 10, 9, 7),
    ),
    (
        "resize-nearest-half-pixel",
        13,
        """g (float[1,2,4,3] x) => (float[1,2,8,9] y) { s = Constant<value = int64[4] {1,2,8,9}>()
           y = Resize<mode="nearest">(x, , , s) }""",
        {"x": floats(1, 2, 4, 3)},
        (11, 10, 9, 7, 19),
    ),
    (
        "attention-causal",
        23,
        "g (float[B,2,S,8] q, float[B,2,S,8] k, float[B,2,S,8] v) => (float[B,2,S,8] y) { y = Attention<is_causal=1>(q, k, v) }",
        {"q": floats(2, 2, 5, 8), "k": floats(2, 2, 5, 8, seed=1), "v": floats(2, 2, 5, 8, seed=2)},
        (22, 18, 17, 14, 13, 12, 11, 10),
    ),
    (
        "attention-masked",
        24,
        "g (float[2,2,5,8] q, float[2,2,5,8] k, float[2,2,5,8] v, float[5,5] m) => (float[2,2,5,8] y) { y = Attention(q, k, v, m) }",
        {"q": floats(2, 2, 5, 8), "k": floats(2, 2, 5, 8), "v": floats(2, 2, 5, 8), "m": floats(5, 5)},
        (23, 22, 13, 10),
    ),
    (
        "rms-normalization",
        23,
        "g (float[2,3,4] x, float[4] s) => (float[2,3,4] y) { y = RMSNormalization(x, s) }",
        {"x": floats(2, 3, 4), "s": floats(4)},
        (22, 17, 13, 11, 9),
    ),
    (
        "swish",
        24,
        "g (float[4] x) => (float[4] y) { y = Swish<alpha=1.5>(x) }",
        {"x": floats(4)},
        (23, 17, 13, 9, 7),
    ),
    (
        "rotary-embedding",
        23,
        "g (float[1,2,3,8] x, float[50,4] c, float[50,4] s, int64[1,3] p) => (float[1,2,3,8] y) { y = RotaryEmbedding(x, c, s, p) }",
        {"x": floats(1, 2, 3, 8), "c": floats(50, 4), "s": floats(50, 4), "p": np.array([[0, 1, 7]])},
        (22, 17, 13, 11),
    ),
    (
        "celu-and-castlike",
        15,
        "g (float[5] x) => (float[5] y) { y = Celu<alpha=2.0>(x) }",
        {"x": floats(5)},
        (12, 11, 9, 7),
    ),
    (
        "dft",
        20,
        "g (float[2,8,1] x) => (float[2,5,2] y) { a = Constant<value = int64 {-2}>() y = DFT<onesided=1>(x, , a) }",
        {"x": floats(2, 8, 1)},
        (19, 17),
    ),
    (
        "max-pool-ceil-padded",
        18,
        "g (float[N,2,8,6] x) => (float[N,2,A,B] y) { y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,1,0,0], ceil_mode=1>(x) }",
        {"x": floats(1, 2, 8, 6)},
        (10, 9, 8, 7),
    ),
    (
        "pad-widths-to-be-folded",
        18,
        """g (float[2,3] x) => (float[A,B] y) { a = Constant<value = int64[2] {1,0}>() b = Constant<value = int64[1] {2}>()
           z = ConstantOfShape<value = int64[1] {3}>(b) p = Concat<axis=0>(a, z) y = Pad(x, p) }""",
        {"x": floats(2, 3)},
        (11, 10, 9),
    ),
    (
        "convolutions",
        22,
        "g (float[1,3,6] x, float[4,3,3] w, float[4,2,2] u) => (float[1,2,8] y) { c = Conv(x, w) y = ConvTranspose<strides=[2]>(c, u) }",
        {"x": floats(1, 3, 6), "w": floats(4, 3, 3), "u": floats(4, 2, 2)},
        (21, 13, 11, 10, 7),
    ),
    (
        "loop",
        18,
        """g (int64 n, float[2,3] x) => (float[2,3] y) { c = Constant<value = bool {1}>() y = Loop(n, c, x) <
            body = b (int64 i, bool k, float[2,3] s) => (bool k2, float[2,3] t) {
              k2 = Identity(k) a = Constant<value = int64[1] {-1}>() m = ReduceMean(s, a) t = Sub(s, m) }> }""",
        {"n": np.array(3), "x": floats(2, 3)},
        (17, 13, 11, 10, 9, 20),
    ),
    (
        "branches",
        18,
        """g (bool c, float[2,3] x) => (float[2] y) { y = If(c) <
            then_branch = t () => (float[2] a) { i = Constant<value = int64[1] {-1}>() a = ReduceMean<keepdims=0>(x, i) },
            else_branch = e () => (float[2] b) { j = Constant<value = int64[1] {1}>() b = ReduceMax<keepdims=0>(x, j) }> }""",
        {"c": np.array(True), "x": floats(2, 3)},
        (17, 13, 11, 10, 20),
    ),
]


@pytest.mark.parametrize(("source", "text", "feeds", "targets"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_each_rule_keeps_the_numbers(source: int, text: str, feeds: dict[str, Any], targets: Sequence[int]) -> None:
    check_conversion(parse(text, source), feeds, targets)


# Written as the TorchScript exporter writes them at old opsets.
OLD: list[tuple[str, int, str, dict[str, Any]]] = [
    (
        "attributes",
        9,
        """g (float[2,3,4] x) => (float[A,B,C] a, float[2,4] b, float[2,3] c, float[2,3] d, float[2,3,2] e, int64[2,3,2] f, float[2,3,4] h)
        { a = Pad<pads=[0,1,0,0,0,2], value=1.5>(x) b = ReduceSum<axes=[1], keepdims=0>(x) c = ReduceMean<axes=[2], keepdims=0>(x)
          s = Slice<axes=[2], starts=[0], ends=[1]>(x) d = Squeeze<axes=[2]>(s) e, f = TopK<axis=2, k=2>(x) h = Clip<min=-0.5, max=0.5>(x) }""",
        {"x": floats(2, 3, 4)},
    ),
    (
        "softmax",
        9,
        "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=1>(x) }",
        {"x": floats(2, 3, 4)},
    ),
    ("softmax-last", 11, "g (float[2,3] x) => (float[2,3] y) { y = LogSoftmax(x) }", {"x": floats(2, 3)}),
    (
        "upsample",
        9,
        'g (float[1,2,3,3] x) => (float[1,2,6,6] y, float[1,2,6,6] z) { s = Constant<value = float[4] {1,1,2,2}>() y = Upsample<mode="nearest">(x, s) z = Upsample<mode="linear">(x, s) }',
        {"x": floats(1, 2, 3, 3)},
    ),
    (
        "dropout-and-norm",
        9,
        "g (float[2,3,4] x, float[3] s) => (float[2,3,4] y) { d = Dropout<ratio=0.3>(x) y = BatchNormalization(d, s, s, s, s) }",
        {"x": floats(2, 3, 4), "s": np.abs(floats(3))},
    ),
    (
        "split-unsqueeze-scatter",
        10,
        """g (float[4,2] x, int64[1,2] i, float[1,2] u) => (float[4,2] y, float[1,3,2] a, float[1,2] b)
        { y = Scatter(x, i, u) p, b = Split<axis=0, split=[3,1]>(x) a = Unsqueeze<axes=[0]>(p) }""",
        {"x": floats(4, 2), "i": np.array([[1, 3]]), "u": floats(1, 2)},
    ),
    (
        "split-even",
        11,
        "g (float[4,2] x) => (float[2,2] a, float[2,2] b) { a, b = Split(x) }",
        {"x": floats(4, 2)},
    ),
]


@pytest.mark.parametrize(("source", "text", "feeds"), [r[1:] for r in OLD], ids=[r[0] for r in OLD])
def test_models_of_old_exporters_are_raised(source: int, text: str, feeds: dict[str, Any]) -> None:
    check_conversion(parse(text, source), feeds, (12, 13, 17, 18, 20, 21, 24))
    onnx.checker.check_model(ir.to_proto(opset.convert(parse(text, source), opset.SUPPORTED[-1])), full_check=True)


def test_a_round_trip_gives_the_same_numbers() -> None:
    text, feeds = OLD[0][2], OLD[0][3]
    up = opset.convert(parse(text, 9), 21)
    assert_same(run(opset.convert(up, 9), feeds), run(parse(text, 9), feeds))


# refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [3, 99, 6, 0])
def test_an_opset_that_does_not_exist_is_refused(wrong: int) -> None:
    with pytest.raises(OptionError, match="can be asked for"):
        opset.check_range(wrong)


def test_the_range_is_said() -> None:
    newest = opset.SUPPORTED[-1]
    with pytest.raises(OptionError) as caught:
        opset.check_range(99)
    assert str(caught.value).startswith(
        f"opset 99 does not exist in the installed onnx; 7 to {newest} can be asked for"
    )
    opset.check_range(7)
    opset.check_range(newest)


def test_a_refusal_names_the_node_the_reason_and_the_nearest_opset() -> None:
    text = """g (float[1,2,5,5] x, float[1,3,3,2] f) => (float[1,2,3,3] y, float[1,2,3,3] z)
        { [node_grid] y = GridSample(x, f) z = GridSample(x, f) }"""
    model = parse(text, 18)
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(OpsetError) as caught:
        opset.convert(model, 11)
    error = caught.value
    assert error.blockers == ("GridSample (2 nodes, first 'node_grid', first in opset 16)",)
    assert error.nearest == 16
    assert "ask for opset 16" in (error.next_step or "")
    assert ir.to_proto(model).SerializeToString() == before
    assert opset.convert(model, 16).opset_imports[""] == 16


def test_all_blockers_are_named_at_once() -> None:
    text = """g (float[3,3] x, int64[3] i) => (float[3,3] y, int64[3] z, float[3] w)
        { y = Einsum<equation = "ij,jk->ik">(x, x) z = BitwiseAnd(i, i) w = ReduceMean<keepdims=0>(x, i) }"""
    with pytest.raises(OpsetError) as caught:
        opset.convert(parse(text, 18), 11)
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
        opset.convert(parse(text, source), target)
    assert caught.value.nearest == target + 1


def test_shrinking_by_nearest_is_not_guessed_at() -> None:
    text = (
        "g (float[1,1,4,4] x) => (float[A,B,C,D] y) { s = Constant<value = float[4] {1,1,0.6,0.6}>() y = Resize(x, s) }"
    )
    with pytest.raises(OpsetError, match="rounding when shrinking"):
        opset.convert(parse(text, 10), 13)


# what is kept ------------------------------------------------------------------------------------------------


def test_origins_names_and_shapes_stay() -> None:
    text = "g (float[B,4] x, float[4] s) => (float[B,4] y) { h = LayerNormalization(x, s) y = Relu(h) }"
    model = parse(text, 17)
    norm = model.graph[0]
    norm.name = "encoder.norm"
    norm.metadata_props["pkg.torch.onnx.stack_trace"] = "File model.py, line 7"
    converted = opset.convert(model, 13)
    new = [n for n in converted.graph if n.op_type != "Relu"]
    assert len(new) > 5
    assert all(n.metadata_props["pkg.torch.onnx.stack_trace"].endswith("line 7") for n in new)
    assert converted.graph[-1].inputs[0].name == "h"
    assert all(v.dtype is not None and v.shape is not None for n in converted.graph for v in n.outputs)
    names = [v.name for n in converted.graph for v in n.outputs] + [n.name for n in converted.graph]
    assert len(names) == len(set(names))


def test_weights_are_shared_and_not_copied() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}> { y = Add(x, w) }", 18)
    converted = opset.convert(model, 13)
    assert converted.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


def test_an_initializer_that_callers_may_override_is_no_constant() -> None:
    text = "g (float[2,3] x, int64[1] a = {1}) => (float[A] y) { y = ReduceSum<keepdims=0>(x, a) }"
    with pytest.raises(OpsetError, match="computed at run time"):
        opset.convert(parse(text, 13), 12)


FUNCTIONS = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
g (float[2,3] x) => (float[2] y, float[2,3] z) {{ y = local.mean_last (x) z = local.{second} (x) }}
<domain: "local", opset_import: ["" : 18]>
mean_last (x) => (y) {{ a = Constant<value = int64[1] {{-1}}>() y = ReduceMean<keepdims=0>(x, a) }}
<domain: "local", opset_import: ["" : 18]>
squash (x) => (y) {{ t = Mul(x, x) y = Mish(t) }}
<domain: "local", opset_import: ["" : 18]>
turn (x) => (y) {{ y = Softmax<axis=0>(x) }}
"""


def test_local_functions_are_converted() -> None:
    model = ir.from_proto(onnx.parser.parse_model(FUNCTIONS.format(second="squash")))
    feeds = {"x": floats(2, 3)}
    check_conversion(model, feeds, (17, 20))
    converted = opset.convert(model, 17)
    assert len(converted.functions) == 3
    assert {f.opset_imports[""] for f in converted.functions.values()} == {17}
    assert converted.ir_version == 8


def test_a_function_whose_types_are_needed_is_inlined() -> None:
    model = ir.from_proto(onnx.parser.parse_model(FUNCTIONS.format(second="turn")))
    check_conversion(model, {"x": floats(2, 3)}, (12, 9))
    assert not opset.convert(model, 12).functions


def test_a_function_of_another_opset_is_carried_by_itself() -> None:
    text = FUNCTIONS.format(second="squash").replace(
        'opset_import: ["" : 18]>\nmean_last (x) => (y) { a = Constant<value = int64[1] {-1}>() y = ReduceMean<keepdims=0>(x, a) }',
        'opset_import: ["" : 13]>\nmean_last (x) => (y) { y = ReduceMean<keepdims=0, axes=[-1]>(x) }',
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert {f.opset_imports[""] for f in model.functions.values()} == {13, 18}
    want = ir.from_proto(onnx.parser.parse_model(FUNCTIONS.format(second="squash")))
    for target in (17, 20):
        converted = opset.convert(model, target)
        assert {f.opset_imports[""] for f in converted.functions.values()} == {target}
        assert_same(run(converted, {"x": floats(2, 3)}), run(want, {"x": floats(2, 3)}))


@pytest.mark.parametrize(
    ("version", "expected"), [(7, 4), (9, 4), (11, 6), (13, 7), (17, 8), (18, 8), (20, 9), (21, 10), (23, 11)]
)
def test_the_ir_version_is_the_smallest_that_fits(version: int, expected: int) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }", 18)
    assert opset.convert(model, version).ir_version == expected


def test_a_model_of_the_wanted_opset_only_gets_its_ir_version() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Relu(x) }", 18, ir_version=11)
    same = opset.convert(model, 18)
    assert (same.ir_version, model.ir_version) == (8, 11)


def test_every_change_of_wording_has_a_rule_or_was_read() -> None:
    """Fails when a newer onnx changes an operator: then somebody has to read what changed."""
    unread = []
    for op, versions in schemas.history().items():
        since = sorted(versions)
        for old, new in itertools.pairwise(since):
            if new < 8 or schemas.wording(op, old) == schemas.wording(op, new):
                continue
            down = (op, new) in table.DOWN or review.is_harmless(op, new, downwards=True)
            up = (op, new) in table.UP or review.is_harmless(op, new, downwards=False)
            gone = versions[new].deprecated
            unread += [] if (down or gone) and up else [(op, new)]
    assert not unread


def test_every_rule_belongs_to_a_border_that_exists() -> None:
    for op, at in {*table.DOWN, *table.UP}:
        assert at in schemas.history()[op], (op, at)


# models exported by PyTorch ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported() -> dict[str, tuple[ir.Model, dict[str, Any]]]:
    """Small models that between them hold what PyTorch models are made of."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.nn import functional

    class Convolutional(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.group = nn.GroupNorm(2, 8)
            self.last = nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            x = functional.max_pool2d(functional.silu(self.norm(self.first(x))), 3, 2, ceil_mode=True)
            x = functional.interpolate(functional.hardswish(self.group(x)), scale_factor=2.0)
            a, b = functional.pad(x, (1, 0, 0, 1)).chunk(2, dim=1)
            x = functional.adaptive_avg_pool2d(torch.cat([a * 2, b.relu()], 1), 1)
            return self.last(x.squeeze(-1).squeeze(-1)).softmax(-1)

    class Encoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 16)
            self.norm = nn.LayerNorm(16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.block = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            y, _ = self.attention(x, x, x, need_weights=False)
            x = self.block(self.norm(x + y))
            q = x.unsqueeze(1)
            q = functional.scaled_dot_product_attention(q, q, q, is_causal=True).squeeze(1)
            mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])) == 0
            scores = (x @ q.transpose(1, 2)).masked_fill(mask, -1e4).softmax(-1)
            return torch.split(scores @ x, [6, 10], dim=-1)[1].cumsum(1)

    cases = {
        "convolutional": (Convolutional(), torch.randn(2, 3, 15, 15), {0: "batch"}),
        "encoder": (Encoder(), torch.randint(0, 20, (2, 7)), {0: "batch", 1: "length"}),
    }
    found = {}
    for name, (module, example, dynamic) in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = ({i: torch.export.Dim(n) for i, n in dynamic.items()},)
            program = torch.onnx.export(
                module.eval(), (example,), dynamo=True, opset_version=18, dynamic_shapes=shapes, verbose=False
            )
        feeds = {program.model.graph.inputs[0].name: example.numpy()}
        found[name] = (program.model, feeds)
    return found


@pytest.mark.parametrize("target", [17, 16, 15, 14, 13, 12, 11, 10, 9, 20, 23])
@pytest.mark.parametrize("name", ["convolutional", "encoder"])
def test_exported_models_keep_their_numbers(exported: Any, name: str, target: int) -> None:
    model, feeds = exported[name]
    check_conversion(model, feeds, (target,), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", [9, 11, 13, 17])
def test_models_of_the_torchscript_exporter_are_raised(source: int) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.Upsample(scale_factor=2), nn.ZeroPad2d(1)]
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Dropout(), nn.Softmax(dim=1)).eval()
    example, file = torch.randn(1, 3, 8, 8), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (example,),
            file,
            opset_version=source,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": [0]},
        )
    old = ir.from_proto(onnx.load_from_string(file.getvalue()))
    check_conversion(old, {"x": example.numpy()}, (18, 21, 24, 10))
    newest = ir.to_proto(opset.convert(old, opset.SUPPORTED[-1]))
    onnx.checker.check_model(newest, full_check=True)


# onnx's own tests --------------------------------------------------------------------------------------------


def samples() -> Iterator[Any]:
    """Every fortieth of onnx's own node tests that ONNX Runtime runs as it stands."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    yield from (case for case in cases[::40] if [o.domain for o in case.model.opset_import] == [""])


def test_onnx_own_node_tests_give_the_same_numbers_or_are_refused() -> None:
    same = refused = 0
    for case in samples():
        arrays = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in case.data_sets[0][0]]
        feeds = {value.name: array for value, array in zip(case.model.graph.input, arrays, strict=True)}
        source = case.model.opset_import[0].version
        try:
            want = run(case.model, feeds)
        except Exception:  # noqa: BLE001  (an operator this runtime does not have)
            continue
        for target in {source - 1, 17, 13, 11} & set(range(11, source)):
            try:
                got = run(opset.convert(ir.from_proto(case.model), target), feeds)
            except OpsetError:
                refused += 1
                continue
            except Exception as error:  # noqa: BLE001
                assert "NOT_IMPLEMENTED" in str(error), (case.name, target, error)  # noqa: PT017
                continue
            assert_same_any(got, want, f"{case.name} to {target}")
            same += 1
    assert same > 40
    assert refused > 5


def assert_same_any(got: Any, want: Any, label: str) -> None:
    if isinstance(want, list):
        assert len(got) == len(want), label
        for x, y in zip(got, want, strict=True):
            assert_same_any(x, y, label)
    elif isinstance(want, np.ndarray) and want.dtype.kind in "fc":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=label)
    else:
        np.testing.assert_array_equal(got, want, err_msg=label)
