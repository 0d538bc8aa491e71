"""Which weight of one model is which of another, once their nodes are matched.

Mostly the one of the same name is the one in the same place. Where they are two, the numbers tell which is meant: some
exporters count names up, so that a name goes over to another weight. Where the numbers tell nothing, names are trusted
if they were right elsewhere.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from torchport.graph.content import same_content
from torchport.graph.matching.sides import stripped
from torchport.irtools.node_reader import is_constant, stored, weight_type

if TYPE_CHECKING:
    from torchport.graph.matching.nodes import Matching

_FEW = 16  # weights of one type that are looked into for one that nobody reads


def pair_weights(found: Matching, graphs: Sequence[tuple[ir.Graph, ir.Graph]]) -> None:
    """Add pairs of weights and constants to a matching of these graphs."""
    votes, namesakes = _votes(found), _namesakes(graphs)
    claims = [_Claim(v, namesakes.get(v), votes.get(v, [])) for v in dict.fromkeys([*namesakes, *votes])]
    wanted = collections.Counter(v for c in claims for v in {c.namesake, *c.placed} if v is not None)
    taken: set[ir.Value] = set()
    wrong = 0
    for choose in (_Claim.agreed, _Claim.by_content):
        for claim in [c for c in claims if c.one not in found.values]:
            other = choose(claim, wanted)
            if other is not None and other not in taken:
                wrong += other is not claim.namesake
                taken.add(other)
                _join(found, claim.one, other)
    for claim in [c for c in claims if c.one not in found.values]:
        other = next((v for v in claim.ranked(by_name=not wrong) if v not in taken), None)
        if other is not None:
            taken.add(other)
            _join(found, claim.one, other)
    _pair_unread(found, graphs, taken)


def _pair_unread(found: Matching, graphs: Sequence[tuple[ir.Graph, ir.Graph]], taken: set[ir.Value]) -> None:
    """Weights that no node of one model reads have no place there: the same numbers tell them, if the type does."""
    for a, b in graphs:
        left = [v for v in b.initializers.values() if v not in taken]
        for one in (v for v in a.initializers.values() if v not in found.values):
            alike = [v for v in left if weight_type(v) == weight_type(one) and not (v.uses() and one.uses())]
            other = next((v for v in alike[:_FEW] if _same_numbers(one, v)), None)
            if other is not None:
                left.remove(other)
                _join(found, one, other)


def _join(found: Matching, one: ir.Value, other: ir.Value) -> None:
    found.values[one] = other
    n, m = one.producer(), other.producer()
    if n is not None and m is not None:
        found.nodes.append((n, m))
        found.why[n] = "name" if one.name == other.name else "neighbors"


def _votes(found: Matching) -> dict[ir.Value, list[ir.Value]]:
    """For each weight those that matched nodes read in its place, the most frequent first."""
    votes: dict[ir.Value, collections.Counter[ir.Value]] = collections.defaultdict(collections.Counter)
    alone = set(found.only_b), set(found.only_a)
    for n, m in found.nodes:
        for one, other in _weights_read(n, m, alone):
            votes[one][other] += 1
    return {one: [other for other, _ in counter.most_common()] for one, counter in votes.items()}


def _namesakes(graphs: Sequence[tuple[ir.Graph, ir.Graph]]) -> dict[ir.Value, ir.Value]:
    found: dict[ir.Value, ir.Value] = {}
    for a, b in graphs:
        there = {v.name: v for v in _weights(b)}
        found.update({v: there[v.name] for v in _weights(a) if v.name in there})
    return found


def _weights_read(
    n: ir.Node, m: ir.Node, alone: tuple[set[ir.Node], set[ir.Node]]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Weights two nodes read in the same slots, then those they read in others: inputs may be swapped."""
    ones = dict(enumerate(_behind(v, alone[1]) for v in stripped(n)))
    others = dict(enumerate(_behind(v, alone[0]) for v in stripped(m)))
    left_a = [v for slot, v in ones.items() if v is not None and others.get(slot) is None]
    left_b = [v for slot, v in others.items() if v is not None and ones.get(slot) is None]
    yield from ((v, w) for slot, v in ones.items() if v is not None and (w := others.get(slot)) is not None)
    if len(left_a) == len(left_b):
        yield from zip(left_a, left_b, strict=True)


def _behind(value: ir.Value | None, alone: set[ir.Node]) -> ir.Value | None:
    """The weight a value is, or is made of by a node that the other model does not have."""
    if value is None or weight_type(value) is not None:
        return value
    producer = value.producer()
    if producer is None or producer not in alone or len(producer.inputs) != 1:
        return None
    source = producer.inputs[0]
    return source if source is not None and weight_type(source) is not None else None


def _weights(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.initializers.values(), *(n.outputs[0] for n in graph if is_constant(n))]


@dataclasses.dataclass(frozen=True)
class _Claim:
    """What may be a weight's partner: its namesake, and those in its place."""

    one: ir.Value
    namesake: ir.Value | None
    placed: Sequence[ir.Value]

    def agreed(self, wanted: Mapping[ir.Value, int]) -> ir.Value | None:
        return self.namesake if self.namesake in self.placed else None

    def by_content(self, wanted: Mapping[ir.Value, int]) -> ir.Value | None:
        """Numbers are read only where there is more than one choice, or another weight wants the same."""
        several = len({*self.placed, self.namesake} - {None}) > 1
        if not several and not any(wanted[v] > 1 for v in self.placed):
            return None
        return next((v for v in self.ranked(by_name=False) if _same_numbers(self.one, v)), None)

    def ranked(self, *, by_name: bool) -> list[ir.Value]:
        named = [] if self.namesake is None else [self.namesake]
        order = [*named, *self.placed] if by_name else [*self.placed, *named]
        alike = weight_type(self.one)
        return sorted(order, key=lambda v: weight_type(v) != alike)


def _same_numbers(one: ir.Value, other: ir.Value) -> bool:
    a, b = stored(one), stored(other)
    return a is not None and b is not None and same_content(a, b)
