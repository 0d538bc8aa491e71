"""How a loss is allowed and measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from torchport.errors import OptionError
from torchport.optimization.agreement import Loss, Metric, read_tolerance
from torchport.tensors import Array


def loss_of(want: Array, got: Array, metric: Metric = "cosine") -> Loss:
    loss = Loss(("y",), metric)
    loss.add([want], [got])
    return loss


@pytest.mark.parametrize(("given", "share"), [("1%", 0.01), ("0.01", 0.01), (0.05, 0.05), ("12.5 %", 0.125)])
def test_a_tolerance_is_a_share(given: Any, share: float) -> None:
    assert read_tolerance(given, "cosine").loss == pytest.approx(share)


def test_without_a_tolerance_the_limits_of_a_proof_hold() -> None:
    assert read_tolerance(None, "cosine").loss is None
    assert read_tolerance("float32", "top1").loss is None


@pytest.mark.parametrize("given", ["0", "-1%", "100%", "nan", "inf", "much", 1.0, True, ""])
def test_what_is_no_share_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="no tolerance"):
        read_tolerance(given, "cosine")


def test_an_unknown_metric_is_refused_with_those_there_are() -> None:
    with pytest.raises(OptionError, match="metric 'sqnr'") as caught:
        read_tolerance("1%", "sqnr")
    assert "cosine, top1" in str(caught.value.next_step)


def test_the_cosine_is_that_of_all_samples_together() -> None:
    rng = np.random.default_rng(0)
    wanted = [rng.normal(size=(2, 3)).astype(np.float32) for _ in range(3)]
    given = [w + np.float32(0.1) for w in wanted]
    loss = Loss(("y",), "cosine")
    for want, got in zip(wanted, given, strict=True):
        loss.add([want], [got])
    a, b = (np.concatenate([x.ravel() for x in arrays]).astype(np.float64) for arrays in (wanted, given))
    assert loss.value == pytest.approx(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-9)


def test_top1_counts_rows_whose_largest_number_moved() -> None:
    want = np.float32([[1, 2], [3, 1], [0, 5], [2, 1]])
    got = np.float32([[1, 2], [1, 3], [0, 5], [2, 1]])
    assert loss_of(want, got, "top1").value == 0.25


def test_whole_numbers_count_where_they_differ() -> None:
    assert loss_of(np.int64([1, 2, 3, 4]), np.int64([1, 2, 3, 5])).value == 0.25


@pytest.mark.parametrize(
    ("want", "got"),
    [
        (np.float32([1, 2]), np.float32([1, np.nan])),
        (np.float32([1, 2]), np.float32([1, np.inf])),
        (np.float32([1, 2]), np.float32([1, 2, 3])),
        (np.float32([1, 2]), np.float64([1, 2])),
    ],
)
def test_what_cannot_be_compared_is_an_infinite_loss(want: Array, got: Array) -> None:
    assert loss_of(want, got).value == math.inf
    assert "output 'y'" in loss_of(want, got).reason


def test_infinities_that_agree_are_no_loss() -> None:
    assert loss_of(np.float32([1, -np.inf]), np.float32([1, -np.inf])).value == 0


def test_zeros_are_equal_to_zeros_and_to_nothing_else() -> None:
    assert loss_of(np.zeros(3, np.float32), np.zeros(3, np.float32)).value == 0
    assert loss_of(np.zeros(3, np.float32), np.ones(3, np.float32)).value == 1


def test_a_missing_output_is_an_infinite_loss() -> None:
    loss = Loss(("y",), "cosine")
    loss.add([np.zeros(1)], [])
    assert loss.value == math.inf
    assert loss.reason == "it gives 0 outputs instead of 1"
