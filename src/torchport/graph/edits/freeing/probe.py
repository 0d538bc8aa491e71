"""What a walk through a graph begins with: the sizes to walk at, and how to read what can be read in several ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass
class Picks:
    """Which of several ways to read a node is taken, in the order they are met: the likeliest, until that fails."""

    taken: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)

    def pick(self, options: int) -> int:
        self.counts.append(options)
        if len(self.counts) > len(self.taken):
            self.taken.append(0)
        return self.taken[len(self.counts) - 1]

    def next(self) -> Picks | None:
        """The ways to try after these failed, the last one changed first."""
        for at in reversed(range(len(self.counts))):
            if self.taken[at] + 1 < self.counts[at]:
                return Picks([*self.taken[:at], self.taken[at] + 1])
        return None


@dataclasses.dataclass(frozen=True)
class Probe:
    """The sizes to walk with: of the dimension before and now, and of every other one, which stay."""

    places: tuple[tuple[str, int], ...]
    name: str
    was: int
    now: int
    others: Mapping[str, int]

    @property
    def old(self) -> dict[str, int]:
        return {**self.others, self.name: self.was}

    @property
    def new(self) -> dict[str, int]:
        return {**self.others, self.name: self.now}
