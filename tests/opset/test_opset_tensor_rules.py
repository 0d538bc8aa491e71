"""Rules for shapes, indices, comparisons and arithmetic keep the numbers."""

# ruff: noqa: E501  (a model is written as one line of onnx's text form)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conversions import SPECIAL, check_conversion, floats, parse

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
        "pad-widths-to-be-folded",
        18,
        """g (float[2,3] x) => (float[A,B] y) { a = Constant<value = int64[2] {1,0}>() b = Constant<value = int64[1] {2}>()
           z = ConstantOfShape<value = int64[1] {3}>(b) p = Concat<axis=0>(a, z) y = Pad(x, p) }""",
        {"x": floats(2, 3)},
        (11, 10, 9),
    ),
]


@pytest.mark.parametrize(("source", "text", "feeds", "targets"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_each_rule_keeps_the_numbers(source: int, text: str, feeds: dict[str, Any], targets: Sequence[int]) -> None:
    check_conversion(parse(text, source), feeds, targets)
