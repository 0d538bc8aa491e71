"""Which weights of two graphs are told by the numbers they hold, and whether what they are called means anything.

Renaming a model changes no numbers, and exporters count names up, so that a name goes over to another weight. But where
most names stayed with their numbers, those that did not are a change: two weights were swapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping

import onnx_ir as ir

from torchport.graph.content import fingerprint, same_place, tiny
from torchport.graph.matching.sides import Side
from torchport.irtools.node_reader import stored


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
    a, b = stored(one), stored(other)
    return a is not None and b is not None and (a is b or same_place(a, b))


def _few(value: ir.Value) -> Hashable:
    tensor = stored(value)
    return None if tensor is None else tiny(tensor)


def _print(value: ir.Value) -> Hashable:
    tensor = stored(value)
    return None if tensor is None else fingerprint(tensor)
