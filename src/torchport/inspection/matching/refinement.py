"""Color refinement of two graphs, and weights that are recognized by the numbers they hold."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Mapping, Sequence

import onnx_ir as ir

from torchport.inspection.diff.weights import fingerprint, same_place, tiny
from torchport.inspection.matching.indexed_graph import Side
from torchport.irtools.node_reader import constant_tensor

# Colors: nodes of two graphs get the same number exactly if they look the same from where one stands.
#
# A node's forward color tells its operator, attributes and weights and the colors of what it reads: all that leads to
# it. Its backward color tells the same of all that it leads to. Nodes that have partners count as what they are,
# whatever is behind them, so a change colors nothing beyond the pairs around it.

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


# Which weights of two graphs are told by the numbers they hold, and whether what they are called means anything.
#
# Renaming a model changes no numbers, and exporters count names up, so that a name goes over to another weight. But
# where most names stayed with their numbers, those that did not are a change: two weights were swapped.


@dataclasses.dataclass(frozen=True)
class Told:
    """Weights of both sides.

    Attributes:
        numbers: for weights that the other side has too, under whatever name, what tells them.
        few: what tiny ones hold, shapes and axes, which many share.
        by_name: whether the names of the others mean anything.
    """

    numbers: Mapping[ir.Value, Hashable]
    few: Mapping[ir.Value, Hashable]
    by_name: bool


def tell_weights(a: Side, b: Side) -> Told:
    """Look into the weights of two graphs, a few numbers each, but for what lies at the same spot of the same file."""
    others = {v.name: v for v in b.weights}
    both = [(v, others[v.name]) for v in a.weights if v.name and v.name in others]
    names = {v: w for v, w in both if a.weights[v][1] == b.weights[w][1]}
    same = {v: w for v, w in names.items() if _lie_together(v, w)}
    unread = {*same, *same.values()}
    prints = {v: p for side in (a, b) for v in side.weights if v not in unread and (p := _print(v)) is not None}
    shared = {prints[v] for v in a.weights if v in prints} & {prints[w] for w in b.weights if w in prints}
    known = {v: w for v, w in names.items() if prints.get(v) in shared}
    stayed = {v: w for v, w in known.items() if prints[v] == prints.get(w)}
    few = {v: p for side in (a, b) for v in side.weights if v not in prints and (p := _few(v)) is not None}
    if len(same) + len(stayed) < len(known) - len(stayed):
        return Told({v: p for v, p in prints.items() if p in shared}, few, by_name=False)
    called = {*names, *names.values()}
    numbers: dict[ir.Value, Hashable] = {v: p for v, p in prints.items() if p in shared and v not in called}
    numbers |= {v: (prints[v], v.name) for pair in stayed.items() for v in pair}
    return Told(numbers, few, by_name=True)


def numbers_key(side: Side, n: int, told: Told) -> Hashable:
    """What the weights hold that a node reads, by slot, of those that are told by it."""
    weights = [(slot, s) for slot, s in enumerate(side.slots[n]) if isinstance(s, ir.Value)]
    numbers = tuple((slot, told.numbers[v]) for slot, v in weights if v in told.numbers)
    return (side.operator[n], numbers) if numbers else None


def names_key(side: Side, n: int, told: Told) -> Hashable:
    """What the weights are called that a node reads, by slot."""
    leaves = [(slot, s) for slot, s in enumerate(side.slots[n]) if isinstance(s, ir.Value)]
    names = tuple((slot, v.name) for slot, v in leaves if v.name and v in side.weights and v not in told.numbers)
    return (side.operator[n], names) if names and told.by_name else None


def _lie_together(one: ir.Value, other: ir.Value) -> bool:
    a, b = constant_tensor(one), constant_tensor(other)
    return a is not None and b is not None and (a is b or same_place(a, b))


def _few(value: ir.Value) -> Hashable:
    tensor = constant_tensor(value)
    return None if tensor is None else tiny(tensor)


def _print(value: ir.Value) -> Hashable:
    tensor = constant_tensor(value)
    return None if tensor is None else fingerprint(tensor)
