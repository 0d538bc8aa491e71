"""The figures are right, the verdict is the proof's, and the quick answer is the same one."""

from __future__ import annotations

import dataclasses
import json
import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from torchport.errors import OptionError
from torchport.numerics import streaming
from torchport.numerics.check import check_output, quick_check
from torchport.numerics.error_metrics import Figures, measure, measure_sequence, merged
from torchport.numerics.tolerance import EXACT, Tolerance, tolerance
from torchport.results import to_json

F32 = np.float32


def _agrees(a: np.ndarray, b: np.ndarray, limit: object) -> bool:
    return quick_check(a, b, limit).ok  # type: ignore[arg-type]


def f32(*numbers: float) -> Any:
    return np.array(numbers, F32)


def test_every_figure_of_a_small_example_is_the_one_worked_out_by_hand() -> None:
    found = measure("y", f32(1, 2, 4, 0), f32(1, 2.5, 3, 0.001))
    assert (found.max_abs, found.max_rel) == (1.0, 0.25)
    assert found.mean_abs == pytest.approx((0 + 0.5 + 1 + 0.001) / 4)
    assert found.mean_rel == pytest.approx((0 + 0.25 + 0.25) / 3)  # a zero has no relative error
    assert (found.p99_abs, found.p99_rel) == (1.0, 0.25)
    assert found.cosine == pytest.approx(18 / math.sqrt(21 * (1 + 6.25 + 9 + 1e-6)))
    assert found.sqnr == pytest.approx(10 * math.log10(21 / 1.250001))
    assert found.mismatched == 0.75
    assert found.first_mismatch is not None
    assert dataclasses.astuple(found.first_mismatch) == ((1,), 2.0, 2.5)
    assert found.histogram.exact == 1
    assert dict(zip(found.histogram.edges, found.histogram.counts[1:], strict=True))[0.1] == 1
    assert sum(found.histogram.counts) == 3
    assert (found.count, found.shape, found.dtype, found.ok) == (4, (4,), "float32", False)


def test_the_four_figures_the_proof_also_has_are_the_same() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((30, 7)).astype(F32)
    b = a + F32(1e-4) * rng.standard_normal((30, 7)).astype(F32)
    found, check = measure("y", a, b), check_output("y", a, b, tolerance("float32"))
    for field in ("max_abs", "max_rel", "cosine", "sqnr"):
        assert getattr(found, field) == pytest.approx(getattr(check, field), rel=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [
        (f32(1.0), np.nextafter(f32(1.0), f32(2.0)), 1),
        (f32(0.0), f32(-0.0), 0),
        (f32(1e-45), f32(-1e-45), 2),
        (np.array([1.0]), np.array([1.0 + 2**-50]), 4),
        (np.array([-1.7e308]), np.array([1.7e308]), 2 * int(np.array(1.7e308).view(np.int64))),
        (np.array([1.0], np.float16), np.array([1.0 + 2**-9], np.float16), 2),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1.0 + 2**-7], ml_dtypes.bfloat16), 1),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2**64 - 1),
        (np.array([0], np.uint64), np.array([2**64 - 1], np.uint64), 2**64 - 1),
        (np.array([True]), np.array([False]), 1),
    ],
)
def test_ulps_are_the_representable_numbers_between(a: Any, b: Any, steps: int) -> None:
    assert measure("y", a, b).max_ulp == steps


def test_nan_and_inf_are_counted_and_the_first_disagreement_is_found() -> None:
    a = np.array([[np.nan, 1, np.inf], [2, np.inf, 3]], F32)
    b = np.array([[np.nan, 1, np.inf], [2, 5, np.nan]], F32)
    found = measure("y", a, b)
    assert (found.nan_reference, found.nan_candidate, found.inf_reference, found.inf_candidate) == (1, 2, 2, 1)
    assert found.first_special == (1, 1)
    assert found.max_abs == math.inf
    assert found.mismatched == pytest.approx(2 / 6)
    assert "NaN or Inf in other places" in found.problem
    same = measure("y", a, a.copy())
    assert (same.ok, same.max_abs, same.sqnr, same.first_special) == (True, 0.0, math.inf, None)


@pytest.mark.parametrize(
    ("a", "b", "problem"),
    [
        (f32(1, 2), f32(1), "shape is [1], expected [2]"),
        (f32(1), np.array([1.0]), "dtype is float64, expected float32"),
        (np.array([2**53 + 1]), np.array([2**53]), "1 of 1 numbers differ"),
        (np.array([True]), np.array([False]), "1 of 1 numbers differ"),
        (np.array(["a", "bc"]), np.array(["a", "bcd"]), "texts differ"),
        (np.array([1 + 1j]), np.array([1 + 2j]), "1 of 2 numbers differ; first at [0]"),
        (np.array([1, 2], ml_dtypes.int4), np.array([1, 3], ml_dtypes.int4), "1 of 2 numbers differ"),
        (F32(1), F32(2), "1 of 1 numbers differ; first at []"),
    ],
)
def test_what_differs_is_said_and_never_ok(a: Any, b: Any, problem: str) -> None:
    found = measure("y", np.asarray(a), np.asarray(b))
    assert not found.ok
    assert found.problem.startswith(problem)
    assert "PyTorch" not in found.problem
    assert not _agrees(np.asarray(a), np.asarray(b), tolerance(np.asarray(a).dtype.name))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), F32),
        np.array(1.5, F32),
        np.array([1, 2], np.uint8),
        np.array([1 + 1j], np.complex64),
        np.array([1.5], ml_dtypes.bfloat16),
        np.array([1.5], ml_dtypes.float8_e4m3fn),
        np.array(["a", "bc"]),
        np.array(["a", None], object)[:1],
        np.arange(6, dtype=F32).reshape(2, 3).T,
    ],
)
def test_a_tensor_agrees_with_itself_whatever_its_dtype_and_shape(array: Any) -> None:
    found = measure("y", array, array.copy())
    assert found.ok
    assert (found.max_abs, found.p99_rel, found.mismatched, found.sqnr) == (0, 0, 0, math.inf)
    assert _agrees(array, array.copy(), tolerance(array.dtype.name))


def test_texts_of_another_width_are_the_same_texts() -> None:
    assert measure("y", np.array(["a"]), np.array(["a"], "<U9")).ok
    assert measure("y", np.array(["a"]), np.array(["a"], object)).ok


def test_another_dtype_is_wrong_but_its_numbers_are_told() -> None:
    found = measure("y", f32(1, 2), np.array([1, 2.5], np.float16))
    assert (found.ok, found.max_abs, found.max_ulp) == (False, 0.5, None)


def test_own_metrics_are_asked_and_a_failing_one_is_named() -> None:
    own = {"sum": lambda a, b: (a - b).sum()}
    assert measure("y", f32(1, 2), f32(0, 0), metrics=own).own == {"sum": 3.0}
    assert math.isnan(measure("y", f32(1, 2), f32(0), metrics=own).own["sum"])
    with pytest.raises(OptionError, match="the metric 'bad' failed: ZeroDivisionError"):
        measure("y", f32(1), f32(1), metrics={"bad": lambda a, b: 1 / 0})


def test_classifiers_are_compared_by_what_they_decide() -> None:
    a = np.eye(4, 10, dtype=F32)
    b = a.copy()
    b[0, 7] = 2.0  # the right class comes second
    b[1] = np.arange(10)  # and here ninth
    b[2, 3] = np.nan
    found = measure("logits", a, b)
    assert (found.top1, found.top5) == (0.25, 0.5)
    assert measure("logits", a, np.zeros_like(a)).top1 == 0.25  # a constant agrees by chance only
    assert measure("x", a.reshape(2, 2, 10), b.reshape(2, 2, 10)).top1 is None
    assert measure("x", a.astype(int), a.astype(int)).top1 is None


def test_rows_with_nan_in_the_same_places_decide_the_same() -> None:
    a = np.eye(3, 4, dtype=F32)
    a[1, 2] = np.nan
    assert measure("logits", a, a.copy()).top1 == 1.0
    b = a.copy()
    b[1, 2], b[1, 3] = 0, np.nan
    assert measure("logits", a, b).top1 == pytest.approx(2 / 3)


def test_a_sequence_is_as_good_as_its_worst_item() -> None:
    good, bad = measure("s[0]", f32(1, 2), f32(1, 2)), measure("s[1]", f32(1, 2), f32(1, 3))
    found = measure_sequence("s", [good, bad], (2, 2))
    assert (found.name, found.ok, found.count, found.max_abs) == ("s", False, 4, 1.0)
    assert found.problem == "item 1: 1 of 2 numbers differ; first at [1]: 3.0, expected 2.0"
    assert measure_sequence("s", [good], (1, 1)).problem == ""
    assert measure_sequence("s", [good], (1, 2)).problem == "2 tensors instead of one tensor"
    assert measure_sequence("s", [], (1, 0)).problem == "no tensors instead of one tensor"
    nothing = measure_sequence("s", [], (0, 0))
    assert (nothing.ok, nothing.count, nothing.max_abs) == (True, 0, 0.0)


def test_percentiles_are_exact_also_when_counted_digit_by_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal(5000)
    b = a + rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 3, 5000)
    errors = np.sort(np.abs(a - b))
    whole = measure("y", a, b)
    monkeypatch.setattr(streaming, "PIECE", 700)
    monkeypatch.setattr("torchport.numerics.streaming.WHOLE", 100)
    monkeypatch.setattr(streaming, "WHOLE", 100)
    digits = measure("y", a, b)
    assert whole.p99_abs == digits.p99_abs == errors[4949]
    assert whole.p99_rel == digits.p99_rel == np.sort(np.abs(a - b) / np.abs(a))[4949]
    assert digits.mean_abs == pytest.approx(whole.mean_abs)
    assert digits.first_mismatch == whole.first_mismatch


def test_a_big_tensor_is_measured_in_little_memory() -> None:
    a = np.ones(1 << 22, F32)
    b = a.copy()
    b[12345] = 2
    tracemalloc.start()
    found = measure("y", a, b)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.mismatched, found.p99_abs, found.max_abs) == (1 / (1 << 22), 0.0, 1.0)
    assert peak < 100 << 20


def test_merged_is_the_worst_of_the_samples() -> None:
    good, bad = measure("y", f32(1, 2), f32(1, 2)), measure("y", f32(1, 2), f32(1, np.nan))
    small = measure("y", f32(1, 2), f32(1, 2.0001))
    both = merged([good, bad, small])
    assert (both.ok, both.max_abs, both.count, both.nan_candidate) == (False, math.inf, 6, 1)
    assert both.problem.endswith("(1 of 3 samples differ)")
    assert both.mismatched == pytest.approx(1 / 6)
    fine = merged([good, small])
    assert fine.ok
    assert fine.max_abs == small.max_abs
    assert fine.mean_abs == pytest.approx(small.mean_abs / 2)
    assert fine.sqnr == small.sqnr
    assert fine.histogram.exact == 3


def test_merged_agreement_is_over_all_rows() -> None:
    one = measure("y", np.eye(3, 6, dtype=F32), np.eye(3, 6, dtype=F32))
    none = measure("y", np.eye(1, 6, dtype=F32), np.eye(1, 6, k=1, dtype=F32))
    assert merged([one, none]).top1 == 0.75


EDGE = st.sampled_from([0.0, -0.0, 1.0, 1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-8, 100.0])
LIMITS = st.sampled_from(
    [tolerance("float32"), tolerance("float16"), EXACT, Tolerance(10.0, 0.0), Tolerance(0.0, 1e-5), Tolerance(1.0, 1e3)]
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), limit=LIMITS, kind=st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
def test_the_quick_answer_is_always_the_slow_one(data: Any, limit: Tolerance, kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    size = data.draw(st.integers(1, 6))
    with np.errstate(all="ignore"):
        a = np.array(data.draw(hnp.arrays(F32, size, elements=EDGE | st.floats(width=32))), dtype)
        near = a.astype(np.float64) * (1 + limit.rtol * data.draw(st.sampled_from([0.0, 0.5, 1.0, 1 + 1e-7, 1.01])))
        other = data.draw(hnp.arrays(F32, size, elements=EDGE | st.floats(width=32)))
        b = np.where(data.draw(hnp.arrays(bool, size)), other, near).astype(dtype)
    found = measure("y", a, b, tolerance=limit)
    assert _agrees(a, b, limit) == found.ok
    assert (found.mismatched == 0) == found.ok


def test_the_quick_answer_is_the_slow_one_at_the_very_edge_of_the_tolerance() -> None:
    limit = tolerance("float32")
    rng = np.random.default_rng(0)
    told = set()
    for _ in range(60):
        a = rng.standard_normal(64).astype(F32)
        edge = limit.rtol * np.abs(a).astype(np.float64) + limit.atol * float(np.abs(a).max())
        b = a.copy()
        b[7] = (a + edge)[7]
        for _ in range(int(rng.integers(3))):
            b[7] = np.nextafter(b[7], F32(rng.choice([-9, 9])))
        told.add(_agrees(a, b, limit))
        assert _agrees(a, b, limit) == measure("y", a, b).ok
    assert told == {True, False}


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "bfloat16", "str"])
def test_figures_can_be_written_as_json(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    figures = measure("y", np.array([0, 1]).astype(kind), np.array([0, 0]).astype(kind))
    told = json.loads(json.dumps(to_json(figures), allow_nan=False))
    assert told["first_mismatch"]["index"] == [1]
    assert told["ok"] is False


def test_figures_that_were_not_taken_are_the_worst_ones() -> None:
    bare = Figures("y", (1,), "float32", 1)
    assert (bare.ok, bare.max_abs, bare.sqnr, bare.mismatched) == (False, math.inf, -math.inf, 1.0)
