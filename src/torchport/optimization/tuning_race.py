"""The final race: the best candidates and the model as given take turns, in several processes each.

The quick measurement picks who takes part. Here the difference to the model as given has to be beyond the noise.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from torchport.benchmark.children import Candidate
from torchport.benchmark.ratios import Ratio
from torchport.benchmark.rounds import Plan, Rounds
from torchport.optimization.agreement import TolerantReference
from torchport.optimization.tuning_turns import Conditions

_PROCESSES = 3
_MOST = 4.0  # seconds for each candidate
_LEAST = 0.5  # seconds for each candidate
_START = 1.7  # seconds until a process has opened a model and is warm
_LIMIT = 300.0  # seconds of a process


@dataclasses.dataclass(frozen=True)
class Won:
    """Who won.

    Attributes:
        place: of the winner among the candidates; 0 is the model as given.
        ratio: how many times as fast as the model as given; None if that won.
    """

    place: int
    ratio: Ratio | None


def race(candidates: Sequence[Candidate], conditions: Conditions, *, seconds: float, seed: int) -> Won | None:
    """Measure candidates beside the first one, which is the model as given. With little time the last are left out.

    Returns:
        The fastest that is right, and faster beyond the noise; None if there is too little time to tell.
    """
    count = min(len(candidates), int(seconds / (_PROCESSES * _START + _LEAST)))
    if count < 2:
        return None
    candidates = candidates[:count]
    each = min(_MOST, max(_LEAST, seconds / count - _PROCESSES * _START))
    rounds = Rounds(
        candidates,
        [dataclasses.replace(point, reference=None) for point in conditions.points],
        Plan(each, _PROCESSES, (conditions.clients,), _LIMIT, conditions.memory, seed),
        teller=candidates[0],
        ordered=lambda candidate, outputs: tuple(outputs),
        reference_of=lambda candidate, outputs: TolerantReference(
            "the model as given", outputs, conditions.names, conditions.limits, allowed=conditions.allowed
        ),
        pairs=[(candidates[0], other) for other in candidates[1:]],
        say=lambda text: None,
    )
    rounds.run()
    if rounds.interrupted:
        raise KeyboardInterrupt
    ratios = {n: ratio for n in range(1, len(candidates)) if (ratio := _mean(rounds, candidates, n, conditions))}
    faster = {n: ratio for n, ratio in ratios.items() if ratio.differs and ratio.value > 1}
    if not faster:
        return Won(0, None)
    place = max(faster, key=lambda n: faster[n].value)
    return Won(place, faster[place])


def _mean(rounds: Rounds, candidates: Sequence[Candidate], place: int, conditions: Conditions) -> Ratio | None:
    """Return how many times as fast a candidate is, over all points; None if it failed or was wrong."""
    found: list[Ratio] = []
    for point in rounds.points:
        series = rounds.series(candidates[place], point, conditions.clients)
        ratio = rounds.ratio(candidates[0], candidates[place], point, conditions.clients)
        if series.failure or ratio is None or (series.judgment and series.judgment.status == "wrong"):
            return None
        found.append(ratio)
    if len(found) == 1:
        return found[0]
    value, low, high = (
        math.exp(statistics.fmean(math.log(number) for number in numbers))
        for numbers in ([r.value for r in found], [r.low for r in found], [r.high for r in found])
    )
    return Ratio(value, low, high, differs=low > 1 or high < 1)
