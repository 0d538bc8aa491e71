"""What is done before and after a model, folded into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.nn.functional import interpolate

import torchport as tp
from torchport.editing.preprocessing.edit import postprocess, preprocess
from torchport.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (2, 50, 37, 3), dtype=np.uint8)
SAME = "g (float[batch,3,24,20] image) => (float[batch,3,24,20] y) { y = Identity(image) }"
TO_MODEL = {"transpose": "NHWC->NCHW"}


def model(text: str = SAME, opset: int = 18) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}'))


def run(given: ir.Model, **feeds: Any) -> list[np.ndarray]:
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [f for f in tp.graph.lint(given) if f.severity != "note"] == []
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def chw(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float()


# --- before -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_the_usual_steps_of_an_image_classifier(opset: int) -> None:
    given = model(opset=opset)
    steps = [{"cast": "float32"}, {"scale": 255}, {"resize": [24, 20]}, {"normalize": "imagenet"}, TO_MODEL]
    assert preprocess(given, steps) == len(given.graph) - 1
    (new,) = given.graph.inputs
    assert (new.name, new.dtype, str(new.shape)) == ("image", ir.DataType.UINT8, "[batch,height,width,3]")
    scaled = interpolate(chw(IMAGES) / 255, size=(24, 20), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    np.testing.assert_allclose(run(given, image=IMAGES)[0], ((scaled - mean) / std).numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("opset", "how", "like"),
    [
        (11, {"mode": "nearest"}, {"mode": "nearest"}),
        (13, {"mode": "cubic"}, {"mode": "bicubic", "align_corners": False}),
        (18, {"mode": "linear", "antialias": True}, {"mode": "bilinear", "antialias": True}),
        (18, {"mode": "cubic", "antialias": True}, {"mode": "bicubic", "antialias": True}),
    ],
)
def test_a_resize_is_pytorchs(opset: int, how: dict[str, Any], like: dict[str, Any]) -> None:
    given = model(opset=opset)
    preprocess(given, [{"resize": {"size": [24, 20], **how}}, TO_MODEL], dtype="uint8")
    wanted = interpolate(chw(IMAGES), size=(24, 20), **like)
    np.testing.assert_allclose(run(given, image=IMAGES)[0], wanted.numpy(), atol=2e-3)


@pytest.mark.parametrize("opset", [11, 18])
def test_the_shorter_side_is_resized_and_the_middle_cropped(opset: int) -> None:
    given = model(opset=opset)
    preprocess(given, [{"resize": 25}, {"crop": [24, 20]}, TO_MODEL], dtype="uint8")
    whole = interpolate(chw(IMAGES), size=(25 * 50 // 37, 25), mode="bilinear", align_corners=False)
    top, left = round((33 - 24) / 2), round((25 - 20) / 2)
    wanted = whole[:, :, top : top + 24, left : left + 20]
    np.testing.assert_allclose(run(given, image=IMAGES)[0], wanted.numpy(), atol=1e-3)


def test_a_letterbox_keeps_the_ratio_and_fills_the_rest() -> None:
    given = model()
    preprocess(given, [{"letterbox": {"size": [24, 20], "fill": 7}}, TO_MODEL], dtype="uint8")
    (got,) = run(given, image=IMAGES)
    inner = interpolate(chw(IMAGES), size=(24, 18), mode="bilinear", align_corners=False).numpy()
    np.testing.assert_allclose(got[..., 1:19], inner, atol=2e-3)
    assert np.all(got[..., [0, 19]] == 7)


def test_padding_channels_and_plain_arithmetic() -> None:
    given = model()
    steps = [TO_MODEL, {"swap_channels": "RGBA->BGR"}, {"pad": {"sizes": [1, 2, 3, 4], "fill": 9}}, {"add": [1, 2, 3]}]
    preprocess(given, steps)
    (new,) = given.graph.inputs
    assert (new.dtype, str(new.shape)) == (ir.DataType.FLOAT, "[batch,18,16,4]")
    x = RNG.standard_normal((2, 18, 16, 4)).astype(np.float32)
    wanted = np.pad(x[..., [2, 1, 0]].transpose(0, 3, 1, 2), [(0, 0), (0, 0), (2, 4), (1, 3)], constant_values=9)
    np.testing.assert_allclose(run(given, image=x)[0], wanted + np.float32([1, 2, 3]).reshape(3, 1, 1), rtol=1e-6)


def test_a_half_precision_model_computes_in_its_own_type() -> None:
    given = model("g (float16[n,3,4,4] x) => (float16[n,3,4,4] y) { y = Identity(x) }")
    preprocess(given, [{"scale": 255}], dtype="uint8", shape=[1, 3, 4, 4])
    x = RNG.integers(0, 256, (1, 3, 4, 4), dtype=np.uint8)
    np.testing.assert_allclose(run(given, x=x)[0], x.astype(np.float16) / np.float16(255), rtol=1e-3)


def test_the_steps_reach_branches_that_use_the_input() -> None:
    given = model(
        "g (float[2,3] x, bool c) => (float[2,3] y) { y = If (c) <then_branch = t () => (float[2,3] p) { p = Neg(x) },"
        " else_branch = e () => (float[2,3] q) { q = Relu(x) }> }"
    )
    assert preprocess(given, [{"multiply": 2}], input="x") == 2
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(given, x=x, c=np.array(True))[0], -2 * x)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([{"normalise": "imagenet"}], "no step 'normalise'.*\n.*did you mean normalize"),
        ([{"normalize": {"mean": [1, 2]}}], "takes mean and std"),
        ([{"normalize": {"mean": [0, 0], "std": [1, 1]}}], "2 numbers, the image 3 channels"),
        ([{"normalize": {"mean": 0, "std": 0}}], "std of 0"),
        ([{"resize": [24]}], "a height and a width"),
        ([{"resize": {"size": [24, 20], "mode": "area"}}], "no mode 'area'"),
        ([{"resize": {"size": [24, 20], "antialiased": True}}], "no option 'antialiased'"),
        ([{"resize": [32, 32]}], r"3,32,32\], input 'image' takes \[batch,3,24,20\]"),
        ([{"cast": "float31"}], "no type 'float31'"),
        ([{"scale": 0}], "divide by 0"),
        ([{"scale": "x"}], "takes a number"),
        ([{"transpose": [0, 1]}], "order of 4 axes"),
        ([{"swap_channels": "BGR"}], "two orders of the same letters"),
        ([{"pad": [1, 2, 3]}], "left, top, right, bottom"),
        ([{"scale": 1, "cast": "float32"}], "a step is a name"),
        ([], "steps are a list"),
        ("softmax", "steps are a list"),
    ],
)
def test_a_step_that_cannot_be_meant_is_refused_and_nothing_is_changed(steps: Any, words: str) -> None:
    given = model()
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match=words):
        preprocess(given, steps)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before


def test_an_antialiased_resize_needs_a_newer_opset() -> None:
    with pytest.raises(InputError, match="needs opset 18, the model has 17"):
        preprocess(model(opset=17), [{"resize": {"size": [24, 20], "antialias": True}}])


def test_one_of_several_inputs_must_be_named() -> None:
    text = "g (float[2] a, float[2] b) => (float[2] y) { y = Add(a, b) }"
    with pytest.raises(InputError, match=r"2 inputs\n.*a, b"):
        preprocess(model(text), [{"scale": 2}])
    with pytest.raises(InputError, match="no input 'c'"):
        preprocess(model(text), [{"scale": 2}], input="c")


# --- after ------------------------------------------------------------------------------------------------------------

CLASSES = "g (float[n,10] x) => (float[n,10] y) { y = Identity(x) }"
MAPS = "g (float[n,5,4,4] x) => (float[n,5,4,4] y) { y = Identity(x) }"
X = RNG.standard_normal((2, 10)).astype(np.float32)
MAP = RNG.standard_normal((2, 5, 4, 4)).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 18])
def test_the_best_classes_with_their_probabilities(opset: int) -> None:
    given = model(CLASSES, opset)
    postprocess(given, ["softmax", {"topk": 3}])
    assert [(o.name, str(o.shape)) for o in given.graph.outputs] == [("y_values", "[n,3]"), ("y_indices", "[n,3]")]
    values, indices = run(given, x=X)
    wanted = torch.from_numpy(X).softmax(-1).topk(3)
    np.testing.assert_allclose(values, wanted.values.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(indices, wanted.indices.numpy())


@pytest.mark.parametrize("opset", [11, 18])
def test_the_classes_of_an_image_are_its_channels(opset: int) -> None:
    given = model(MAPS, opset)
    postprocess(given, ["softmax"])
    np.testing.assert_allclose(run(given, x=MAP)[0], torch.from_numpy(MAP).softmax(1).numpy(), rtol=1e-5)
    given = model(MAPS, opset)
    postprocess(given, ["argmax", {"cast": "uint8"}])
    (out,) = given.graph.outputs
    assert (out.name, out.dtype, str(out.shape)) == ("y", ir.DataType.UINT8, "[n,4,4]")
    np.testing.assert_array_equal(run(given, x=MAP)[0], MAP.argmax(1))


def test_an_output_that_is_used_inside_too() -> None:
    given = model("g (float[2,10] x) => (float[2,10] y, float[2,10] z) { y = Neg(x) z = Neg(y) }")
    postprocess(given, ["sigmoid", {"transpose": [1, 0]}], output="y")
    y, z = run(given, x=X)
    np.testing.assert_allclose(y, (1 / (1 + np.exp(X))).T, rtol=1e-5)
    np.testing.assert_array_equal(z, X)


def plain_nms(boxes: np.ndarray, scores: np.ndarray, iou: float, score: float, most: int) -> set[tuple[int, int, int]]:
    """Boxes as corners [N, A, 4] and scores [N, C, A]: the (image, class, box) that stay."""
    kept: set[tuple[int, int, int]] = set()
    for n, c in np.ndindex(scores.shape[:2]):
        mine: list[int] = []
        for a in np.argsort(-scores[n, c]):
            if (
                scores[n, c, a] > score
                and len(mine) < most
                and all(_iou(boxes[n, a], boxes[n, m]) <= iou for m in mine)
            ):
                mine.append(int(a))
        kept |= {(n, c, a) for a in mine}
    return kept


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    both = sides.prod()
    return float(both / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - both))


PLACES = RNG.uniform(0, 1, (2, 30, 2)).astype(np.float32)
SIZES = RNG.uniform(0.2, 0.6, (2, 30, 2)).astype(np.float32)
SCORES = RNG.uniform(0, 1, (2, 30, 3)).astype(np.float32)
CORNERS = np.concatenate([PLACES, PLACES + SIZES], -1)


@pytest.mark.parametrize(
    ("kind", "boxes"),
    [
        ("xyxy", CORNERS),
        ("xywh", np.concatenate([PLACES, SIZES], -1)),
        ("cxcywh", np.concatenate([PLACES + SIZES / 2, SIZES], -1)),
    ],
)
def test_detections_that_overlap_are_suppressed(kind: str, boxes: np.ndarray) -> None:
    given = model(
        "g (float[n,30,4] a, float[n,30,3] b) => (float[n,30,4] boxes, float[n,30,3] scores)"
        " { boxes = Identity(a) scores = Identity(b) }"
    )
    fields = {"boxes": "boxes", "scores": "scores", "format": kind, "iou": 0.4, "score": 0.3, "max_per_class": 6}
    postprocess(given, [{"nms": fields}])
    corners, scores, classes, indices = run(given, a=boxes, b=SCORES)
    assert {tuple(row) for row in indices.tolist()} == plain_nms(CORNERS, SCORES.transpose(0, 2, 1), 0.4, 0.3, 6)
    np.testing.assert_allclose(corners, CORNERS[indices[:, 0], indices[:, 2]], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores, SCORES[indices[:, 0], indices[:, 2], indices[:, 1]])
    np.testing.assert_array_equal(classes, indices[:, 1])


def test_boxes_and_scores_in_one_output_as_yolo_has_them() -> None:
    given = model("g (float[n,7,30] x) => (float[n,7,30] y) { y = Identity(x) }", 13)
    postprocess(given, [{"nms": {"format": "cxcywh", "score": 0.3}}])
    assert [o.name for o in given.graph.outputs][:2] == ["detected_boxes", "detected_scores"]
    both = np.concatenate([PLACES + SIZES / 2, SIZES, SCORES], -1).transpose(0, 2, 1)
    indices = run(given, x=np.ascontiguousarray(both))[3]
    assert {tuple(row) for row in indices.tolist()} == plain_nms(CORNERS, SCORES.transpose(0, 2, 1), 0.5, 0.3, 100)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (["sofmax"], "no step 'sofmax'.*\n.*did you mean softmax"),
        ([{"topk": 11}], "how many of 10, not 11"),
        ([{"topk": 3}, "softmax"], "must come last"),
        ([{"softmax": 2}], "no axis 2"),
        ([{"nms": {"format": "yxyx"}}], "no format 'yxyx'"),
        ([{"nms": {"iou": 2}}], "between 0 and 1"),
        ([{"nms": {"boxes": "y"}}], "both 'boxes' and 'scores'"),
        (["nms"], "not seen to hold boxes and scores"),
        ([{"topk": {"k": 2, "names": ["x", "i"]}}], "has a tensor 'x' already"),
    ],
)
def test_a_step_behind_that_cannot_be_meant_is_refused(steps: Any, words: str) -> None:
    given = model(CLASSES)
    before = ir.to_proto(given).SerializeToString(deterministic=True)
    with pytest.raises(InputError, match=words):
        postprocess(given, steps)
    assert ir.to_proto(given).SerializeToString(deterministic=True) == before
    assert not given.graph.outputs[0].uses()


# --- detectors: letterbox, one output, boxes in the image -------------------------------------------------------------


def test_the_fill_of_a_letterbox_is_a_color_of_the_image_wherever_the_step_stands() -> None:
    first, later = model(), model()
    normal = {"normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}}
    box = {"letterbox": {"size": [24, 20], "fill": 114}}
    preprocess(first, [{"cast": "float32"}, box, {"scale": 255}, {"swap_channels": "BGR->RGB"}, normal, TO_MODEL])
    preprocess(later, [{"cast": "float32"}, {"scale": 255}, {"swap_channels": "BGR->RGB"}, normal, box, TO_MODEL])
    wanted = run(first, image=IMAGES)[0]
    np.testing.assert_allclose(run(later, image=IMAGES)[0], wanted, atol=1e-5)
    np.testing.assert_allclose(wanted[0, :, 0, 0], (114 / 255 - np.array([0.5, 0.4, 0.3])) / [0.2, 0.3, 0.4], atol=1e-5)


def test_the_default_fill_is_gray_after_a_scale() -> None:
    given = model()
    preprocess(given, [{"scale": 255}, {"letterbox": [24, 20]}, TO_MODEL], dtype="uint8")
    np.testing.assert_allclose(run(given, image=IMAGES)[0][..., 0], 114 / 255, rtol=1e-6)


@pytest.mark.parametrize("shape", ["n,8,boxes", "n,boxes,8"])
def test_one_output_with_a_dynamic_number_of_boxes_objectness_and_more_numbers(shape: str) -> None:
    given = model(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Identity(x) }}", 13)
    postprocess(given, [{"nms": {"objectness": True, "classes": 2, "score": 0.3}}])
    rows = np.concatenate([PLACES + SIZES / 2, SIZES, SCORES, SCORES[..., :1]], -1)
    own = SCORES[..., :1] * SCORES[..., 1:3]
    x = rows if shape.endswith("8") else rows.transpose(0, 2, 1)
    corners, _, _, indices = run(given, x=np.ascontiguousarray(x))
    assert {tuple(row) for row in indices.tolist()} == plain_nms(CORNERS, own.transpose(0, 2, 1), 0.5, 0.3, 100)
    np.testing.assert_allclose(corners, CORNERS[indices[:, 0], indices[:, 2]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ([{"letterbox": [24, 20]}], lambda x, y: (x * 18 / 37 + 1, y * 24 / 50)),
        ([{"resize": [24, 20]}], lambda x, y: (x * 20 / 37, y * 24 / 50)),
        ([{"pad": [1, 2, 3, 4]}, {"resize": [24, 20]}], lambda x, y: ((x + 1) * 20 / 41, (y + 2) * 24 / 56)),
        ([{"resize": 24}, {"crop": [24, 20]}], lambda x, y: (x * 24 / 37 - 2, y * 32 / 50 - 4)),
    ],
)
def test_boxes_are_those_of_the_image_before_it_was_resized(steps: list[Any], place: Any, opset: int) -> None:
    text = (
        "g (float[n,3,24,20] image, float[n,5,k] x) => (float[n,3,24,20] y, float[n,5,k] z)"
        "{ y = Identity(image) z = Identity(x) }"
    )
    given = model(text, opset)
    preprocess(given, [*steps, TO_MODEL], input="image", dtype="uint8")
    postprocess(given, [{"nms": {"score": 0.1}}], output="z")
    wanted = np.array([10.0, 12.0, 21.0, 30.0])
    left, top = place(wanted[0], wanted[1])
    right, bottom = place(wanted[2], wanted[3])
    box = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0.9]
    x = np.array(box, np.float32).reshape(1, 5, 1)
    got = dict(zip([o.name for o in given.graph.outputs], run(given, image=IMAGES[:1], x=x), strict=True))
    np.testing.assert_allclose(got["detected_boxes"], [wanted], atol=1e-3)
    plain = model(text, opset)
    preprocess(plain, [*steps, TO_MODEL], input="image", dtype="uint8")
    postprocess(plain, [{"nms": {"score": 0.1, "image": False}}], output="z")
    got = dict(zip([o.name for o in plain.graph.outputs], run(plain, image=IMAGES[:1], x=x), strict=True))
    np.testing.assert_allclose(got["detected_boxes"], [[left, top, right, bottom]], atol=1e-3)
