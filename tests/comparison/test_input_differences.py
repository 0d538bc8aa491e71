"""Inputs that differ by their preprocessing are told so, in plain words, and others are not explained away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchport.comparison.input_differences import hint, same_inputs
from torchport.inputs.samples import Sample

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (2, 3, 9, 11)).astype(np.uint8)
IMAGE = (PIXELS / 255).astype(np.float32)
MEAN = np.float32([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STD = np.float32([0.229, 0.224, 0.225]).reshape(3, 1, 1)
NORMAL = (IMAGE - MEAN) / STD
IDS = RNG.integers(0, 30000, (2, 12))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (IMAGE * 255, IMAGE, "differs by a factor of 255: one side scales to 0..1"),
        (IMAGE, PIXELS, "differs by a factor of 255: one side scales to 0..1"),
        (RNG.random((64,)), None, "differs by a factor of 255: one side scales to 0..1"),  # rounded on the other side
        (IMAGE, IMAGE * 3, "differs by a factor of 3"),
        (IMAGE, -IMAGE, "has the other sign on one side"),
        (IMAGE, IMAGE * 2 - 1, "goes from -1 to 1 on one side and is 0..1 on the other"),
        (PIXELS, (PIXELS / 127.5 - 1).astype(np.float32), "goes from -1 to 1 on one side and is 0..255 on the other"),
        (IMAGE, IMAGE + 0.5, "is shifted by 0.5 on one side"),
        (IMAGE[:, :1], (IMAGE[:, :1] - 0.1307) / 0.3081, "is normalized on one side only: (x - 0.1307) / 0.3081"),
        (IMAGE, NORMAL, "ImageNet's mean [0.485, 0.456, 0.406] and deviation [0.229, 0.224, 0.225]"),
        (NORMAL, IMAGE, "ImageNet's mean [0.485, 0.456, 0.406] and deviation [0.229, 0.224, 0.225]"),
        (PIXELS, NORMAL, "ImageNet's mean [123.7, 116.3, 103.5] and deviation [58.39, 57.12, 57.3"),
        (IMAGE.transpose(0, 2, 3, 1), IMAGE, "is laid out as NHWC on one side and NCHW on the other"),
        (IMAGE[0], IMAGE[0].transpose(1, 2, 0), "is laid out as CHW on one side and HWC on the other"),
        (IMAGE, IMAGE.transpose(0, 1, 3, 2), "is transposed: axes [0, 1, 3, 2]"),
        (IMAGE, IMAGE[:, ::-1], "has its channels in the other order (RGB and BGR)"),
        (IMAGE, NORMAL[:, ::-1], "(RGB and BGR) and is normalized by channel on one side only: ImageNet's"),
        (
            PIXELS.transpose(0, 2, 3, 1)[..., ::-1],
            IMAGE,
            "is laid out as NHWC on one side and NCHW on the other and has its channels in the other order "
            "(RGB and BGR) and differs by a factor of 255: one side scales to 0..1",
        ),
        (IMAGE[0], IMAGE[:1], "has another shape, [3, 9, 11] and [1, 3, 9, 11]"),
        (IMAGE, IMAGE.reshape(2, 297), "has the same numbers in another shape"),
        (IMAGE, IMAGE.astype(np.float64), "has the same numbers, as float32 on one side and float64 on the other"),
        (IDS, np.pad(IDS, ((0, 0), (0, 4))), "has 12 along axis 1 on one side and 16 on the other; the first 12 agree"),
        (np.pad(IDS, ((0, 0), (3, 0))), IDS, "the last 12 agree: one side is padded or cut"),
        (IDS, IDS + 1, "is shifted by 1 on one side"),
        (IMAGE, IMAGE + RNG.normal(0, 0.1, IMAGE.shape), "is alike on both sides (correlation 0.95"),
        (np.float32([1, 1e-4]), np.float32([1, 0.5e-4]), "differs by rounding only"),
    ],
)
def test_the_usual_differences_are_told(a: Any, b: Any, words: str) -> None:
    b = np.rint(a * 255).astype(np.uint8) if b is None else b
    (found,) = same_inputs(Sample("a", {"image": a}), Sample("b", {"image": b}), ["image"])
    assert not found.ok
    assert found.problem.startswith("input 'image' ")
    assert words in found.problem


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (IMAGE, RNG.random(IMAGE.shape).astype(np.float32)),
        (IDS, RNG.integers(0, 30000, IDS.shape)),
        (RNG.integers(0, 2, (4, 16)), RNG.integers(0, 2, (4, 16))),
        (RNG.integers(0, 2, (4, 16)), RNG.integers(0, 2, (4, 16)).astype(np.float32)),
        (np.float32([1, 2]), np.float32([3, 7])),
        (np.ones((3, 8), np.float32), np.zeros((3, 8), np.float32)),
        (np.zeros((0, 3), np.float32), np.zeros((0, 4), np.float32)),
        (IMAGE, IMAGE[:, :, :5, :7]),
        (IDS, RNG.integers(0, 30000, (2, 16))),
        (np.array(["a"]), np.array(["b"])),
        (np.float32([np.nan] * 9), np.ones(9, np.float32)),
    ],
)
def test_numbers_that_have_nothing_to_do_with_each_other_get_no_explanation(a: Any, b: Any) -> None:
    assert hint(a, b) == ""
    (found,) = same_inputs(Sample("a", {"x": a}), Sample("b", {"x": b}), ["x"])
    assert not found.ok
    assert found.problem.startswith("input 'x' differs: ")


def test_the_same_inputs_are_the_same_and_a_missing_one_is_named() -> None:
    a, b = Sample("ours", {"x": IMAGE, "n": IDS}), Sample("theirs.npz", {"x": IMAGE.copy()})
    same, missing = same_inputs(a, b, ["x", "n"])
    assert same.ok
    assert (missing.ok, missing.problem) == (False, "input 'n' is missing in theirs.npz")
    (other,) = same_inputs(b, a, ["n"])
    assert other.problem == "input 'n' is missing in theirs.npz"


def test_of_a_big_batch_only_a_part_is_looked_at() -> None:
    big = np.broadcast_to(IMAGE[:1], (15000, 3, 9, 11))
    assert hint(big, big[:, ::-1]) == "has its channels in the other order (RGB and BGR)"
