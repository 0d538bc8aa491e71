"""The error statistics: the same however the arrays are cut into pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchport.numerics import streaming
from torchport.numerics.streaming import Distribution, Errors
from torchport.numerics.tolerance import EXACT, Tolerance

LIMIT = Tolerance(1e-3, 1e-5)


def test_statistics_do_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal(1000).astype(np.float32)
    b = a + random.standard_normal(1000).astype(np.float32) * 1e-2
    a[3] = b[3] = np.nan
    b[700] = np.inf
    whole = Errors().over(a, b, LIMIT)
    monkeypatch.setattr(streaming, "PIECE", 7)
    pieces = Errors().over(a, b, LIMIT)
    assert (pieces.count, pieces.finite, pieces.wrong) == (whole.count, whole.finite, whole.wrong) == (1000, 998, 947)
    assert (pieces.first_wrong, pieces.first_special) == (whole.first_wrong, whole.first_special) == (0, 700)
    assert pieces.max_abs == whole.max_abs == math.inf
    assert pieces.total == pytest.approx(whole.total)
    assert pieces.cosine == pytest.approx(whole.cosine)
    assert pieces.sqnr == pytest.approx(whole.sqnr)


def test_a_distribution_has_the_same_statistics_and_the_spread() -> None:
    a = np.zeros(200, np.float32)
    b = a.copy()
    b[:2] = [1, 2]
    plain, spread = Errors().over(a, b, EXACT), Distribution(a, b, EXACT)
    assert (spread.max_abs, spread.mean_abs, spread.wrong) == (plain.max_abs, plain.mean_abs, plain.wrong)
    assert spread.p99(relative=False) == 0.0
    assert spread.histogram[0] == 198


def test_equal_arrays_have_a_cosine_of_exactly_one_and_no_noise() -> None:
    for scale in (1e-100, 0.1, 3.0, 1e100):
        a = np.linspace(1, 2, 777) * scale
        found = Errors().over(a, a.copy(), EXACT)
        assert found.cosine == pytest.approx(1.0, abs=0 if scale in (0.1, 3.0) else 1e-12)
        assert found.sqnr == math.inf


def test_complex_numbers_count_as_two() -> None:
    found = Errors().over(np.array([1 + 2j]), np.array([1 + 3j]), EXACT)
    assert (found.count, found.wrong, found.max_abs) == (2, 1, 1.0)
