"""Colors: nodes of two graphs get the same number exactly if they look the same from where one stands.

A node's forward color tells its operator, attributes and weights and the colors of what it reads: all that leads to
it. Its backward color tells the same of all that it leads to. Nodes that have partners count as what they are, whatever
is behind them, so a change colors nothing beyond the pairs around it.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence

import onnx_ir as ir

from torchport.graph.matching.numbers import Told
from torchport.graph.matching.sides import Side

_WIDE = 1 << 16  # more than a node has outputs
_PAIR = 1 << 40  # more than there are other colors


class Mode(enum.Enum):
    """How much counts: which weights, by numbers or name, only their types, or of a node nothing but its operator."""

    NAMED = "named"
    TYPED = "typed"
    LOOSE = "loose"


class Palette:
    """Numbers for what was seen, the same for both sides."""

    def __init__(self, sides: Sequence[Side], pairs: Mapping[ir.Value, int], told: Told) -> None:
        """`pairs`: leaves that are known to be each other's partners, with the number of their pair."""
        self.pairs = pairs
        self._told = told
        self._weights = {v: kind for side in sides for v, kind in side.weights.items()}
        self._seen: dict[Hashable, int] = {}
        self._leaves: dict[Mode, dict[ir.Value | None, int]] = {mode: {} for mode in Mode}
        self._own: dict[tuple[int, Mode], list[tuple[int, ...]]] = {}

    def number(self, what: Hashable) -> int:
        return self._seen.setdefault(what, len(self._seen))

    def leaf(self, value: ir.Value | None, mode: Mode) -> int:
        known = self._leaves[mode]
        if value not in known:
            known[value] = self._leaf(value, mode)
        return known[value]

    def _leaf(self, value: ir.Value | None, mode: Mode) -> int:
        if value is None:
            return self.number("nothing")
        if value in self.pairs:
            return self.number(("pair", self.pairs[value]))
        if value not in self._weights:
            return self.number(("value", str(value.type)))
        if mode is Mode.LOOSE:
            return self.number("weight")
        if mode is Mode.NAMED and value in self._told.numbers:
            return self.number(("numbers", self._told.numbers[value]))
        if mode is Mode.NAMED and value in self._told.few:
            return self.number(("few", self._weights[value], self._told.few[value]))
        named = mode is Mode.NAMED and self._told.by_name
        return self.number(("weight", self._weights[value], value.name if named else ""))

    def own(self, side: Side, mode: Mode) -> list[tuple[int, ...]]:
        """For each node its weights; what is computed tells nothing about what a node leads to."""
        key = (id(side), mode)
        if key not in self._own:
            self._own[key] = [
                tuple(self.leaf(s, mode) if isinstance(s, ir.Value) and s in side.weights else -1 for s in slots)
                for slots in side.slots
            ]
        return self._own[key]


def forward(side: Side, partner: Sequence[int | None], palette: Palette, mode: Mode) -> list[int]:
    """`partner`: for each node the number of the pair it is in, or None."""
    colors = _colors(partner)
    kinds = side.operator if mode is Mode.LOOSE else side.strict

    def color(source: tuple[int, int] | ir.Value | None) -> int:
        if isinstance(source, tuple):
            return colors[source[0]] * _WIDE + source[1]
        return -1 - palette.leaf(source, mode)

    for n, pair in enumerate(partner):
        if pair is None:
            outer = tuple(sorted(map(color, side.outer[n]))) if side.outer[n] else ()
            colors[n] = palette.number((kinds[n], tuple(map(color, side.slots[n])), outer))
    return colors


def backward(
    side: Side, partner: Sequence[int | None], palette: Palette, mode: Mode, outputs: Sequence[int]
) -> list[int]:
    """`outputs`: for each output of the graph the number of its pair."""
    colors = _colors(partner)
    loose = mode is Mode.LOOSE
    kinds = side.operator if loose else side.strict
    weights = palette.own(side, mode)
    for n in range(len(partner) - 1, -1, -1):
        if partner[n] is None:
            uses = sorted([(slot, colors[user], output) for user, slot, output in side.users[n]])
            ends = sorted([(outputs[position], output) for position, output in side.given[n]])
            colors[n] = palette.number((kinds[n], () if loose else weights[n], tuple(uses), tuple(ends)))
    return colors


def _colors(partner: Sequence[int | None]) -> list[int]:
    """Nodes in a pair have the color of the pair, which no other node has."""
    return [0 if pair is None else _PAIR + pair for pair in partner]
