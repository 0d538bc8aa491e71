"""The accuracy guard fails closed: a wrong scale, NaN, another shape, a flipped class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchport.errors import RandomModelError
from torchport.optimization.accuracy import Accuracy, HeldOut, Limits
from torchport.optimization.calibration import given_data
from torchport.results import TensorInfo
from torchport.tensors import Array

Change = Callable[[Array], Array]


class Pretended:
    """A session whose output is a function of its input."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self.outputs = (TensorInfo("y", "float32", None),)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": self._change(feeds["x"])}


def judged(
    folder: Path, reference: Change, candidate: Change, drop: Any = 0.01, *, samples: Any = None, metric: Any = None
) -> Accuracy:
    """Hold a function against another one, on eight samples of 5 by 4 random numbers."""
    rng = np.random.default_rng(0)
    given = samples or [{"x": rng.normal(size=(5, 4)).astype(np.float32)} for _ in range(8)]
    data = given_data(given, [TensorInfo("x", "float32", (5, 4))], {}, folder, extras=False)
    limits = Limits.read(drop, has_metric=metric is not None)
    held_out: Any = HeldOut(data, Pretended(reference), limits, metric)  # type: ignore[arg-type]
    return held_out.measure(Pretended(candidate))


def same(x: Array) -> Array:
    return x


def test_equal_outputs_pass_without_noise(tmp_path: Path) -> None:
    found = judged(tmp_path, same, same)
    assert found.ok
    assert (found.cosine, found.sqnr, found.top1, found.noise) == (pytest.approx(1), math.inf, 1.0, 0.0)
    assert found.samples == 2


def test_a_wrong_scale_fails_though_its_cosine_is_one(tmp_path: Path) -> None:
    found = judged(tmp_path, same, lambda x: np.float32(1.5) * x)
    assert found.cosine == pytest.approx(1)
    assert "SQNR" in found.problem


def test_the_sqnr_of_a_drop_is_the_one_of_noise_with_that_cosine(tmp_path: Path) -> None:
    limits = Limits.read("2%", has_metric=False)
    assert limits.cosine == pytest.approx(0.98)
    assert limits.sqnr == pytest.approx(10 * math.log10(25))
    assert str(limits) == "cosine ≥ 0.98, SQNR ≥ 14 dB"


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_nan_or_infinity_in_one_place_fails(tmp_path: Path, number: float) -> None:
    def broken(x: Array) -> Array:
        copy = x.copy()
        copy[0, 0] = number
        return copy

    assert "NaN or infinity" in judged(tmp_path, same, broken).problem
    assert "NaN or infinity" in judged_again(tmp_path, broken, same).problem
    assert judged_again(tmp_path, broken, broken).ok


def judged_again(folder: Path, reference: Change, candidate: Change) -> Accuracy:
    place = folder / str(len(list(folder.iterdir())))
    place.mkdir()
    return judged(place, reference, candidate)


@pytest.mark.parametrize("change", [lambda x: x[:4], lambda x: x.astype(np.float64), lambda x: x[None]])
def test_another_shape_or_dtype_fails(tmp_path: Path, change: Change) -> None:
    assert "instead of float32[5, 4]" in judged(tmp_path, same, change).problem


def test_a_flipped_class_fails_where_top_1_was_asked(tmp_path: Path) -> None:
    def flipped(x: Array) -> Array:
        copy = x.copy()
        copy[0] = copy[0][::-1]
        return copy

    found = judged(tmp_path, same, flipped, {"top1": "10%"})
    assert found.top1 == 0.8
    assert "top-1 agreement 0.8, the limit is 0.9" in found.problem
    assert judged_again(tmp_path, same, same).ok


def test_integers_are_held_to_the_share_that_is_equal(tmp_path: Path) -> None:
    def rounded(x: Array) -> Array:
        return np.round(10 * x).astype(np.int64)

    assert judged(tmp_path, rounded, rounded).ok
    found = judged_again(tmp_path, rounded, lambda x: rounded(x + np.float32(0.2)))
    assert "share of equal numbers 0" in found.problem


def test_an_output_that_is_all_zeros_must_stay_so(tmp_path: Path) -> None:
    assert judged(tmp_path, np.zeros_like, np.zeros_like).ok
    assert not judged_again(tmp_path, np.zeros_like, lambda x: np.float32(1e-3) + 0 * x).ok


def test_small_outputs_of_one_sample_do_not_fail_the_whole(tmp_path: Path) -> None:
    """An error is measured beside the signal of all samples: a probability of nearly 0 has no signal of its own."""
    samples = [{"x": np.full((5, 4), 1.0 if n == 3 else 1e-4, np.float32)} for n in range(8)]
    assert judged(tmp_path, same, lambda x: x + np.float32(1e-4), samples=samples).ok


def test_a_metric_alone_decides_where_there_is_one(tmp_path: Path) -> None:
    def mean(outputs: Mapping[str, Array], sample: Mapping[str, Array]) -> float:
        assert set(sample) == {"x"}
        return float(np.abs(outputs["y"]).mean())

    found = judged(tmp_path, same, lambda x: np.float32(0.5) * x, 0.9, metric=mean)
    assert found.ok
    assert found.metric_after == pytest.approx(0.5 * (found.metric_before or 0))
    (tmp_path / "again").mkdir()
    assert "metric drops" in judged(tmp_path / "again", same, lambda x: np.float32(0.5) * x, 0.1, metric=mean).problem


def test_a_model_that_draws_numbers_is_no_reference(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RandomModelError, match="output 'y'"):
        judged(tmp_path, lambda x: x + np.float32(rng.normal()), same)


def test_a_drop_and_limits_by_kind_go_together() -> None:
    found = Limits.read({"": "1%", "top1": "2%", "sqnr": "30"}, has_metric=False)
    assert (found.cosine, found.sqnr, found.top1) == (0.99, 30.0, 0.98)
    found = Limits.read({"": 0.02, "cosine": "5%"}, has_metric=True)
    assert (found.metric, found.cosine, found.sqnr) == (0.02, 0.95, None)
