"""How many times as fast one candidate is as another, with an interval that the noise of the measurement gives.

Two processes that run the same file differ: the system lays out their memory otherwise, and keeps it for their life.
Runs of one process therefore tell nothing of that difference, however many there are. The sample is the process: each
pair of fresh processes gives one ratio, the median over the rounds in which they took turns, and the interval is
Student's over the logarithms of these ratios. Where many processes were needed, because the machine is loaded, some
ratios are far off; the interval is then Yuen's, over the mean without the smallest and the largest fifth.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

SHOWN = 0.95  # the interval that is printed
SURE = 0.995  # the interval that a difference has to be outside of: many benchmarks are run
_MANY = 8  # processes, from which on the ends are left out
_ENDS = 0.2  # of the ratios, at each end
SMALLEST = 0.01  # a difference below 1% is called none


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The time of one candidate as a multiple of another's.

    Attributes:
        value: the estimate.
        low: the lower end of the 95% interval.
        high: the upper end.
        differs: the difference is beyond the noise.
    """

    value: float
    low: float
    high: float
    differs: bool

    @property
    def width(self) -> float:
        """Return half of the interval as a part of the estimate."""
        return math.sqrt(self.high / self.low) - 1


def ratio_of(pairs: Sequence[Sequence[tuple[float, float]]]) -> Ratio | None:
    """Return the ratio of two candidates' times; None for less than two pairs of processes.

    Args:
        pairs: for each pair of processes the times of both in each round.
    """
    logs = [statistics.median(math.log(a / b) for a, b in rounds) for rounds in pairs if rounds]
    if len(logs) < 2:
        return None
    middle, error, freedom = _trimmed(sorted(logs))
    shown, sure = (student(level, freedom) * error for level in (SHOWN, SURE))
    differs = abs(middle) > max(sure, math.log1p(SMALLEST))
    return Ratio(math.exp(middle), math.exp(middle - shown), math.exp(middle + shown), differs)


def _trimmed(logs: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean of sorted numbers without those at the ends, its standard error, and its degrees of freedom."""
    count = len(logs)
    cut = int(_ENDS * count) if count >= _MANY else 0
    kept = logs[cut : count - cut]
    winsorized = [min(max(value, kept[0]), kept[-1]) for value in logs]
    error = statistics.stdev(winsorized) / ((1 - 2 * cut / count) * math.sqrt(count))
    return statistics.fmean(kept), error, len(kept) - 1


@functools.cache
def student(level: float, freedom: int) -> float:
    """Return the number of standard errors to each side that holds `level` of Student's distribution."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _inside(angle, freedom) < level else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _inside(angle: float, freedom: int) -> float:
    """Return the part of Student's distribution within ± tan(angle) √freedom.

    Abramowitz and Stegun, 26.7.3 and 26.7.4: a finite sum of powers of the cosine.
    """
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for n in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * n / (n + 1)
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)
