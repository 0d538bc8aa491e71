"""Models of old exporters are raised, and keep their numbers."""

# ruff: noqa: E501  (a model is written as one line of onnx's text form)

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from conversions import assert_same, check_conversion, floats, parse, run

from torchport.opset import convert

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
    onnx.checker.check_model(ir.to_proto(convert.convert(parse(text, source), convert.SUPPORTED[-1])), full_check=True)


def test_a_round_trip_gives_the_same_numbers() -> None:
    text, feeds = OLD[0][2], OLD[0][3]
    up = convert.convert(parse(text, 9), 21)
    assert_same(run(convert.convert(up, 9), feeds), run(parse(text, 9), feeds))
