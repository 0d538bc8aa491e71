"""How far a candidate may be from the model as given, and how far it is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchport.errors import OptionError
from torchport.numerics.tolerance import limits_for
from torchport.optimization.accuracy import Limits
from torchport.optimization.agreement import Agreement, TolerantReference, read_tolerance
from torchport.tensors import Array


def noise_of(want: Array, got: Array) -> float:
    agreement = Agreement(("y",))
    agreement.add("s", [want], [got])
    return agreement.accuracy(Limits()).noise


def problem_of(want: Array, got: Array) -> str:
    agreement = Agreement(("y",))
    agreement.add("s", [want], [got])
    return agreement.accuracy(Limits()).problem


@pytest.mark.parametrize("given", [None, "float32"])
def test_without_a_tolerance_the_limits_of_a_proof_hold(given: str | None) -> None:
    assert read_tolerance(given) is None


def test_a_tolerance_is_read_as_the_limits_of_quantize() -> None:
    limits = read_tolerance("1%")
    assert limits is not None
    assert limits.cosine == pytest.approx(0.99)
    with pytest.raises(OptionError, match="cannot be meant"):
        read_tolerance("200%")


def test_noise_is_the_power_of_the_error_over_that_of_the_signal() -> None:
    want = np.float32([3, 4])
    assert noise_of(want, want + np.float32([0.5, 0])) == pytest.approx(0.25 / 25)
    assert noise_of(want, want) == 0


def test_whole_numbers_count_where_they_differ() -> None:
    assert noise_of(np.int64([1, 2, 3, 4]), np.int64([1, 2, 3, 5])) == 0.25


@pytest.mark.parametrize(
    ("want", "got"),
    [
        (np.float32([1, 2]), np.float32([1, np.nan])),
        (np.float32([1, 2]), np.float32([1, np.inf])),
        (np.float32([1, 2]), np.float32([1, 2, 3])),
        (np.float32([1, 2]), np.float64([1, 2])),
    ],
)
def test_what_cannot_be_compared_is_a_problem(want: Array, got: Array) -> None:
    assert problem_of(want, got).startswith("output 'y': sample 's'")


def test_infinities_that_agree_are_no_error() -> None:
    assert problem_of(np.float32([1, -np.inf]), np.float32([1, -np.inf])) == ""


def test_a_missing_output_is_a_problem() -> None:
    agreement = Agreement(("y",))
    agreement.add("s", [np.zeros(1)], [])
    assert agreement.accuracy(Limits()).problem == "it gives 0 outputs instead of 1"


def test_a_reference_with_limits_takes_what_a_proof_does_not() -> None:
    want, got = np.float32([1.0, 2.0]), np.float32([1.01, 2.0])
    strict = TolerantReference("given", (want,), ("y",), limits_for([], None))
    tolerant = TolerantReference("given", (want,), ("y",), limits_for([], None), allowed=Limits(cosine=0.99))
    assert strict.judge([got]).status == "wrong"
    assert tolerant.judge([got]).status == "right"
    assert tolerant.judge([np.float32([-1, 2])]).status == "wrong"
    assert tolerant.judge([np.float32([math.nan, 2])]).status == "wrong"
