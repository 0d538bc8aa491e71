"""The ratio of two candidates: the process is the sample, and a difference within the noise is called none."""

from __future__ import annotations

import random

import pytest

from torchport.benchmark.ratios import ratio_of, student


@pytest.mark.parametrize(
    ("level", "freedom", "expected"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776), (0.95, 9, 2.262), (0.995, 4, 5.598), (0.995, 7, 4.029)],
)
def test_the_quantiles_are_those_of_the_tables(level: float, freedom: int, expected: float) -> None:
    assert student(level, freedom) == pytest.approx(expected, abs=1e-3)


def measured(
    draw: random.Random, ratio: float, *, layout: float, noise: float, processes: int = 5
) -> list[list[tuple[float, float]]]:
    """Times of two candidates: each process has a speed of its own, each turn some noise, and all drift alike."""
    pairs = []
    for _ in range(processes):
        speeds = [draw.lognormvariate(0, layout) for _ in range(2)]
        drift = [draw.uniform(1, 2) for _ in range(5)]
        turns = [[d * s * draw.lognormvariate(0, noise) for d in drift] for s in speeds]
        pairs.append([(a * ratio, b) for a, b in zip(*turns, strict=True)])
    return pairs


def test_processes_that_differ_by_their_memory_are_no_difference() -> None:
    draw = random.Random(0)
    found = [ratio_of(measured(draw, 1.0, layout=0.01, noise=0.01)) for _ in range(1000)]
    assert sum(r is not None and r.differs for r in found) / len(found) < 0.01


def test_the_interval_holds_the_ratio_in_95_of_100() -> None:
    draw = random.Random(1)
    found = [ratio_of(measured(draw, 1.1, layout=0.02, noise=0.01)) for _ in range(1000)]
    inside = sum(r is not None and r.low <= 1.1 <= r.high for r in found) / len(found)
    assert 0.93 < inside < 0.97


def test_a_tenth_more_work_is_found() -> None:
    draw = random.Random(2)
    found = [ratio_of(measured(draw, 1.1, layout=0.01, noise=0.01)) for _ in range(500)]
    assert sum(r is not None and r.differs and r.value > 1 for r in found) / len(found) > 0.98


@pytest.mark.parametrize("processes", [5, 8, 10])
def test_the_interval_is_honest_for_every_number_of_processes(processes: int) -> None:
    draw = random.Random(3)
    found = [ratio_of(measured(draw, 1.0, layout=0.02, noise=0.02, processes=processes)) for _ in range(1000)]
    assert 0.92 < sum(r is not None and r.low <= 1 <= r.high for r in found) / len(found) < 0.98
    assert sum(r is not None and r.differs for r in found) / len(found) < 0.015


def test_two_of_ten_processes_that_were_disturbed_hide_no_difference() -> None:
    draw = random.Random(4)
    found = []
    for _ in range(200):
        pairs = measured(draw, 1.1, layout=0.01, noise=0.01, processes=10)
        for n, factor in ((0, 1.6), (1, 0.7)):
            pairs[n] = [(a * factor, b) for a, b in pairs[n]]
        found.append(ratio_of(pairs))
    assert sum(r is not None and r.differs for r in found) / len(found) > 0.98


def test_runs_of_one_process_tell_no_interval() -> None:
    assert ratio_of([[(1.0, 2.0)] * 100]) is None
    assert ratio_of([]) is None


def test_a_difference_below_one_percent_is_none_however_precise() -> None:
    found = ratio_of([[(1.005, 1.0)], [(1.0051, 1.0)], [(1.0049, 1.0)]])
    assert found is not None
    assert found.low > 1
    assert not found.differs
