"""Rules for layers, activations, sampling and control flow keep the numbers."""

# ruff: noqa: E501  (a model is written as one line of onnx's text form)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conversions import check_conversion, floats, parse

# name, opset, text, feeds, targets
RULES: list[tuple[str, int, str, dict[str, Any], Sequence[int]]] = [
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
