"""Comparison fails closed."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from torchport.numerics.check import check_output
from torchport.numerics.tolerance import EXACT, tolerance


def check(reference: Any, candidate: Any, dtype: str = "float32") -> Any:
    a, b = np.asarray(reference), np.asarray(candidate)
    if a.dtype == np.float64 and dtype == "float32":
        a, b = a.astype(np.float32), b.astype(np.float32)
    return check_output("y", a, b, tolerance(a.dtype.name))


def test_equal_answers_agree_exactly() -> None:
    result = check([1.0, -2.0], [1.0, -2.0])
    assert result.ok
    assert (result.max_abs, result.max_rel, result.cosine, result.sqnr) == (0, 0, 1, math.inf)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, np.inf], [1.0, 3e38]),
        ([1.0, 2.0], [1.0, 2.1]),
        ([1e-6, 2e-6], [1e-6, 3e-6]),  # small numbers are held to their own size
        ([0.0, 0.0], [0.0, 1e-6]),
        ([1.0], [[1.0]]),
        ([1.0, 2.0], [1.0]),
    ],
)
def test_what_differs_is_said(reference: Any, candidate: Any) -> None:
    result = check(reference, candidate)
    assert not result.ok
    assert result.problem


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ([1.0, np.nan], [1.0, np.nan]),
        ([1.0, -np.inf], [1.0, -np.inf]),
        ([1.0, 2.0], [1.0, 2.0005]),
        ([1000.0, 0.0], [1000.0, 0.005]),  # zero beside a thousand
        ([], []),
    ],
)
def test_rounding_and_equal_special_values_agree(reference: Any, candidate: Any) -> None:
    assert check(reference, candidate).ok


_LEAST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("mask", [-1e9, 1e9, -1e30, _LEAST])
def test_numbers_beside_a_mask_are_held_to_their_own_size(mask: float) -> None:
    right = np.array([0.5, -2.0, 3.0, mask, mask], np.float32)
    wrong = np.array([0.5, 2.0, -3.0, mask, mask], np.float32)
    assert check(right, np.array([0.5000001, -2.0, 3.0000002, mask, mask], np.float32)).ok
    assert not check(right, wrong).ok
    assert not check(right, np.array([0.5, -2.0, 3.0, mask, 0], np.float32)).ok
    scores = np.array([1.5, -40.0, 3.0, -2.0], np.float32)  # rounded away, or nearly
    masked = np.concatenate([scores, scores + np.float32(mask)])
    assert check(masked, masked).ok
    assert not check(masked, np.concatenate([scores * 1.01, scores + np.float32(mask)])).ok


def test_a_large_number_that_was_computed_is_no_mask() -> None:
    """Beside a hundred thousand and some, computed from it, what is left of a difference is rounding."""
    assert check([123456.7, 0.01], [123456.7, 0.5]).ok
    assert check([1e9, 0.01], [1.0000001e9, 0.5]).ok


def test_masks_in_other_places_or_other_dtypes() -> None:
    half = np.array([1.0, -65504.0], np.float16)
    assert not check(half, np.array([1.5, -65504.0], np.float16)).ok
    brain = np.array([1.0, -1e9], ml_dtypes.bfloat16)
    assert not check(brain, np.array([1.5, -1e9], ml_dtypes.bfloat16)).ok
    assert not check([1.0, -1e9], [-1e9, 1.0]).ok


def test_integers_and_booleans_are_exact() -> None:
    assert not check_output("y", np.array([1, 2]), np.array([1, 3]), EXACT).ok
    assert not check_output("y", np.array([True]), np.array([False]), EXACT).ok
    huge = np.array([2**53 + 1])
    assert not check_output("y", huge, huge - 1, EXACT).ok  # beyond what a float64 can tell apart


def test_another_dtype_is_wrong_whatever_the_numbers() -> None:
    result = check_output("y", np.ones(2, np.float32), np.ones(2, np.float64), tolerance("float32"))
    assert "dtype is float64, expected float32" in result.problem


def test_the_first_wrong_place_is_named() -> None:
    reference = np.zeros((2, 3), np.float32)
    candidate = reference.copy()
    candidate[1, 2] = 5
    problem = check_output("y", reference, candidate, tolerance("float32")).problem
    assert "1 of 6 numbers differ; first at [1, 2]: 5.0, expected 0.0" in problem


def test_complex_and_bfloat16_are_compared_as_numbers() -> None:
    z = np.array([1 + 2j, 3 - 1j], np.complex64)
    assert check_output("y", z, z, tolerance("complex64")).ok
    assert not check_output("y", z, z.conj(), tolerance("complex64")).ok
    b = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    assert check_output("y", b, b, tolerance("bfloat16")).ok
    assert not check_output("y", b, (b * ml_dtypes.bfloat16(1.5)), tolerance("bfloat16")).ok


def test_a_float32_output_of_a_float16_model_is_only_as_good_as_float16() -> None:
    assert tolerance("float32", "float16").rtol == tolerance("float16").rtol
    assert tolerance("float32", "float32").rtol == tolerance("float32").rtol
    assert tolerance("int64", "float16") == EXACT


def test_large_arrays_are_looked_at_to_the_end() -> None:
    reference = np.ones(3_000_001, np.float32)
    candidate = reference.copy()
    candidate[-1] = 2
    assert "first at [3000000]" in check_output("y", reference, candidate, tolerance("float32")).problem


floats = hnp.arrays(np.float32, hnp.array_shapes(max_side=5), elements=st.floats(-1e6, 1e6, width=32))


@given(floats, st.floats(1e-2, 1e3))
def test_a_relative_error_above_the_limit_never_passes(reference: Any, factor: float) -> None:
    largest = np.abs(reference).max(initial=0)
    wrong = reference.copy().reshape(-1)
    position = int(np.abs(reference).argmax())
    wrong[position] += max(float(largest), 1e-3) * factor
    assert not check_output("y", reference, wrong.reshape(reference.shape), tolerance("float32")).ok


@given(floats)
def test_an_array_agrees_with_itself(reference: Any) -> None:
    assert check_output("y", reference, reference.copy(), tolerance("float32")).ok
