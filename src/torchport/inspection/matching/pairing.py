"""Which node of one graph is which of another, in rounds: what is certain first, and nothing against what is certain.

1. Equal colors (see `colors`) that one node of each graph has, or weights that hold the same numbers.
2. Equal colors, whatever the weights; equal names of weights or of nodes, unless the neighbors say otherwise.
3. From pairs outward: what stands in the same place beside them, also past nodes that were put in or taken out.
4. What stands between the same pairs, though its operator is another.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import onnx_ir as ir

from torchport.inspection.matching.indexed_graph import Side, called, name_key, output_key
from torchport.inspection.matching.refinement import (
    Mode,
    Palette,
    backward,
    forward,
    names_key,
    numbers_key,
    tell_weights,
)

Why = Literal["structure", "numbers", "name", "neighbors", "place"]
_FAR = 4  # how many nodes may have been put in between, or taken out
_WIDEST = 32  # readers of one value beyond which looking further than them tells nothing


@dataclasses.dataclass(frozen=True)
class _Look:
    """What nodes must have in common: what leads to them, what they lead to, what they are called."""

    mode: Mode
    ahead: bool = True
    behind: bool = True
    named: bool = False


# Both colors are the surest; names tell alike ones apart, of weights rather than of nodes, which exporters count up;
# and what leads to a node says more than what it leads to.
_SURE = [
    _Look(Mode.NAMED),
    _Look(Mode.NAMED, behind=False, named=True),
    _Look(Mode.NAMED, ahead=False, named=True),
    _Look(Mode.TYPED, named=True),
    _Look(Mode.NAMED, behind=False),
    _Look(Mode.NAMED, ahead=False),
    _Look(Mode.TYPED, behind=False, named=True),
    _Look(Mode.TYPED, ahead=False, named=True),
    _Look(Mode.TYPED),
    _Look(Mode.TYPED, behind=False),
    _Look(Mode.TYPED, ahead=False),
]
_LOOSE = [_Look(Mode.LOOSE), _Look(Mode.LOOSE, behind=False), _Look(Mode.LOOSE, ahead=False)]


class Rounds:
    """The pairs between two graphs found so far: `partner` numbers the node of the other side."""

    def __init__(self, a: Side, b: Side, leaves: dict[ir.Value, ir.Value], outputs: list[tuple[int, int]]) -> None:
        """`leaves`: inputs and outer values that are each other's; `outputs`: positions of the graphs' outputs."""
        self.a, self.b = a, b
        self.partner: tuple[list[int | None], list[int | None]] = ([None] * len(a.nodes), [None] * len(b.nodes))
        self.pair_of: tuple[list[int | None], list[int | None]] = ([None] * len(a.nodes), [None] * len(b.nodes))
        self.pairs: list[tuple[int, int]] = []
        self.why: list[Why] = []
        self._leaves = leaves
        numbers = {v: n for n, pair in enumerate(leaves.items()) for v in pair}
        self._told = tell_weights(a, b)
        self._palette = Palette((a, b), numbers, self._told)
        self._names_help = True
        self._colored: dict[tuple[int, Mode, bool], tuple[list[int], int]] = {}
        self._outputs = outputs
        self._ends = _numbered(outputs, len(a.graph.outputs), len(b.graph.outputs))

    def run(self) -> None:
        self._color(_SURE[:1])
        self._pair_by(functools.partial(numbers_key, told=self._told), "numbers")
        self._names_help = self._are_names_kept()
        self._color(look for look in _SURE if self._names_help or not look.named)
        self._by_names()
        before = -1
        while before < len(self.pairs) and self._is_open():
            before = len(self.pairs)
            self._spread()
            self._color(_LOOSE)
        self._interchangeable()
        self._replaced()

    def _is_open(self) -> bool:
        return all(any(p is None for p in partner) for partner in self.partner)

    # --- pairs by what they have in common -----------------------------------------------------------------------

    def _color(self, looks: Iterable[_Look]) -> None:
        for look in looks:
            if self._is_open():
                self._pair_unique(self._key(0, look), self._key(1, look), "structure")

    def _key(self, number: int, look: _Look) -> Callable[[int], Hashable]:
        side = (self.a, self.b)[number]
        ahead = self._colors(number, look.mode, ahead=True) if look.ahead else side.operator
        behind = self._colors(number, look.mode, ahead=False) if look.behind else side.operator
        if look.named:
            return lambda n: (ahead[n], behind[n], called(side.nodes[n]))
        return lambda n: (ahead[n], behind[n])

    def _colors(self, number: int, mode: Mode, *, ahead: bool) -> list[int]:
        """Colors stay as they are until a new pair is found."""
        key = (number, mode, ahead)
        found, when = self._colored.get(key, ([], -1))
        if when != len(self.pairs):
            side, pairs = (self.a, self.b)[number], self.pair_of[number]
            if ahead:
                found = forward(side, pairs, self._palette, mode)
            else:
                found = backward(side, pairs, self._palette, mode, self._ends[number])
            self._colored[key] = (found, len(self.pairs))
        return found

    def _are_names_kept(self) -> bool:
        """Whether the pairs that were found without their names mostly have the same, of names both sides have."""
        there = {called(node): m for m, node in enumerate(self.b.nodes)}
        namesakes = [(there.get(called(self.a.nodes[n])), m) for n, m in self.pairs]
        kept = sum(m == other for other, m in namesakes)
        return 2 * kept >= sum(other is not None for other, _ in namesakes)

    def _by_names(self) -> None:
        self._pair_by(functools.partial(names_key, told=self._told), "name")
        for key in (name_key, output_key) if self._names_help else ():
            self._pair_by(key, "name")
        # Exporters count up: where one model has a node more, the names after it are those of other nodes. Once there
        # are pairs around, they tell.
        named = [p for p, why in zip(self.pairs, self.why, strict=True) if why == "name"]
        while wrong := {p for p in named if self.partner[0][p[0]] == p[1] and not self._plausible(*p)}:
            self._part(wrong)

    def _pair_by(self, key: Callable[[Side, int], Hashable], why: Why) -> None:
        self._pair_unique(functools.partial(key, self.a), functools.partial(key, self.b), why, self._plausible)

    def _part(self, wrong: set[tuple[int, int]]) -> None:
        """Forget pairs."""
        kept = [(p, why) for p, why in zip(self.pairs, self.why, strict=True) if p not in wrong]
        for known in (*self.partner, *self.pair_of):
            known[:] = [None] * len(known)
        self.pairs, self.why = [], []
        self._colored.clear()
        for (n, m), why in kept:
            self._match(n, m, why)

    def _interchangeable(self) -> None:
        """Nodes that nothing tells apart, as many on both sides: any pairing of them is right."""
        ones, others = (_groups(self._free(number), self._key(number, _Look(Mode.TYPED))) for number in (0, 1))
        for key, alike in ones.items():
            if len(alike) == len(others.get(key, ())):
                for n, m in zip(alike, others[key], strict=True):
                    self._match(n, m, "structure")

    def _replaced(self) -> None:
        """Another operator in the same place: it reads the same and is read by the same."""
        self._pair_unique(lambda n: self._place(0, n), lambda n: self._place(1, n), "place")

    def _place(self, number: int, n: int) -> Hashable:
        side, pair_of = (self.a, self.b)[number], self.pair_of[number]
        sources = [*side.slots[n], *side.outer[n]]
        if any(isinstance(s, tuple) and pair_of[s[0]] is None for s in sources):
            return None
        reads = frozenset(self._known(number, s) for s in sources) - {None}
        uses = frozenset((pair_of[u], s, o) for u, s, o in side.users[n] if pair_of[u] is not None)
        ends = frozenset((self._ends[number][position], o) for position, o in side.given[n])
        name = None if uses or ends else called(side.nodes[n])  # nobody reads it: then it must be called the same
        return (reads, uses, ends, name) if uses or ends or name else None

    def _known(self, number: int, source: tuple[int, int] | ir.Value | None) -> Hashable:
        """The pair a source belongs to; None for weights, and for what has no partner."""
        if isinstance(source, tuple):
            pair = self.pair_of[number][source[0]]
            return None if pair is None else (pair, source[1])
        return None if source is None else self._palette.pairs.get(source)

    def _pair_unique(
        self,
        key_a: Callable[[int], Hashable],
        key_b: Callable[[int], Hashable],
        why: Why,
        allowed: Callable[[int, int], bool] = lambda n, m: True,
    ) -> None:
        ones, others = _unique(self._free(0), key_a), _unique(self._free(1), key_b)
        for key, n in ones.items():
            m = others.get(key)
            if m is not None and allowed(n, m):
                self._match(n, m, why)

    def _free(self, number: int) -> Iterator[int]:
        side, partner = (self.a, self.b)[number], self.partner[number]
        return (n for n in range(len(side.nodes)) if partner[n] is None and not side.constant[n])

    def _match(self, n: int, m: int, why: Why) -> None:
        self.partner[0][n], self.partner[1][m] = m, n
        self.pair_of[0][n] = self.pair_of[1][m] = len(self.pairs)
        self.pairs.append((n, m))
        self.why.append(why)

    def _plausible(self, n: int, m: int) -> bool:
        """Whether the pairs around two nodes are not against their being one."""
        against = 0
        for slot_a, slot_b in zip(self.a.slots[n], self.b.slots[m], strict=False):
            one, other = self._known(0, slot_a), self._known(1, slot_b)
            if one is not None and one == other:
                return True
            against += one is not None and other is not None
        uses = {(self.partner[0][u], s, o) for u, s, o in self.a.users[n]}
        if any((u, s, o) in uses for u, s, o in self.b.users[m]):
            return True
        return not against

    # --- from pairs outward --------------------------------------------------------------------------------------

    def _spread(self) -> None:
        for one, other in self._outputs:
            self._beside_end(one, other)
        readers = [(self.a.readers.get(v, []), self.b.readers.get(w, [])) for v, w in self._leaves.items()]
        for ones, others in readers:
            self._below(ones, others)
        self._drain(0)
        for ones, others in readers:
            self._past([r[0] for r in ones], [r[0] for r in others])
        number = 0
        while number < len(self.pairs):
            n, m = self.pairs[number]
            self._past(self.a.readers_of(n), self.b.readers_of(m))
            for above_a, above_b in zip(self.a.slots[n], self.b.slots[m], strict=False):
                if isinstance(above_a, tuple) and isinstance(above_b, tuple):
                    self._past([above_a[0]], [above_b[0]], up=True)
            number += 1

    def _drain(self, number: int) -> None:
        """Look around every pair from this one on, those that are found meanwhile included."""
        while number < len(self.pairs):
            n, m = self.pairs[number]
            for above, below in zip(self.a.slots[n], self.b.slots[m], strict=False):
                if isinstance(above, tuple) and isinstance(below, tuple) and above[1] == below[1]:
                    self._try(above[0], below[0])
            self._below(self.a.users[n], self.b.users[m])
            number += 1

    def _beside_end(self, one: int, other: int) -> None:
        ends = [v.producer() for v in (self.a.graph.outputs[one], self.b.graph.outputs[other])]
        n, m = self.a.number.get(ends[0]), self.b.number.get(ends[1])  # type: ignore[arg-type]
        if n is not None and m is not None:
            self._try(n, m)

    def _below(self, one: Iterable[tuple[int, ...]], other: Iterable[tuple[int, ...]]) -> None:
        """Readers of one value: who reads it in the same way, by attributes and all, then by operator."""
        for kind_a, kind_b in ((self.a.strict, self.b.strict), (self.a.operator, self.b.operator)):
            free_a = [u for u in one if self.partner[0][u[0]] is None]
            free_b = [u for u in other if self.partner[1][u[0]] is None]
            if not free_a or not free_b:
                return
            others = _unique(free_b, functools.partial(_use_key, kind_b))
            for key, use in _unique(free_a, functools.partial(_use_key, kind_a)).items():
                if key in others:
                    self._try(use[0], others[key][0])

    def _try(self, n: int, m: int) -> None:
        free = self.partner[0][n] is None and self.partner[1][m] is None
        if free and self.a.operator[n] == self.b.operator[m] and self._plausible(n, m):
            self._match(n, m, "neighbors")

    def _past(self, one: Iterable[int], other: Iterable[int], *, up: bool = False) -> None:
        """Where nodes were put in or taken out: the nearest that is alone of its kind on both sides."""
        rings_a = self._rings(0, one, up)
        rings_b = self._rings(1, other, up) if rings_a else []
        near = sorted(((i, j) for i in range(len(rings_a)) for j in range(len(rings_b)) if i + j), key=sum)
        for i, j in near:
            ones, others = _unique(rings_a[i], self.a.looks), _unique(rings_b[j], self.b.looks)
            for key, n in ones.items():
                m = others.get(key)
                if m is not None and self._plausible(n, m):
                    self._match(n, m, "neighbors")
                    self._drain(len(self.pairs) - 1)
                    return

    def _rings(self, number: int, start: Iterable[int], up: bool) -> list[list[int]]:
        """Nodes without a partner that are one, two, ... steps away."""
        side, partner = (self.a, self.b)[number], self.partner[number]
        ring = list(dict.fromkeys(n for n in start if partner[n] is None))
        rings: list[list[int]] = []
        seen = set(ring)
        while ring and len(rings) < _FAR and len(ring) <= _WIDEST:
            rings.append(ring)
            following = dict.fromkeys(u for n in ring for u in (side.sources(n) if up else side.readers_of(n)))
            ring = [u for u in following if u not in seen and partner[u] is None]
            seen.update(ring)
        return rings


_Item = TypeVar("_Item")


def _unique(items: Iterable[_Item], key: Callable[[_Item], Hashable]) -> dict[Hashable, _Item]:
    """The items that are alone with their key; None is no key."""
    found: dict[Hashable, _Item | None] = {}
    for item in items:
        own = key(item)
        found[own] = None if own in found else item
    return {own: item for own, item in found.items() if item is not None and own is not None}


def _groups(items: Iterable[int], key: Callable[[int], Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _numbered(pairs: list[tuple[int, int]], count_a: int, count_b: int) -> tuple[list[int], list[int]]:
    """For each output of either graph a number, the same for those that are each other's."""
    ones, others = [-1 - n for n in range(count_a)], [-1 - count_a - n for n in range(count_b)]
    for number, (one, other) in enumerate(pairs):
        ones[one] = others[other] = number
    return ones, others


def _use_key(kinds: Sequence[Hashable], use: tuple[int, ...]) -> Hashable:
    return (kinds[use[0]], *use[1:])
