"""Which inputs a part of a graph lacks, and the fewest tensors that would do instead.

The fewest tensors that part the model's inputs from the part's outputs are a smallest vertex cut. Of the smallest the
one nearest to the outputs is taken, so that the part stays small; tensors that depend on the given inputs are left out,
so that those keep their use.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from torchport.irtools.traversal import used_by

_LONGEST = 6  # names of a way that are shown


@dataclasses.dataclass(frozen=True)
class Need:
    """What is missing, each with the way by which it is needed, and the fewest tensors that would do."""

    missing: dict[ir.Value, list[str]]
    smallest: list[ir.Value]


def missing_inputs(begin: Sequence[ir.Value], end: Sequence[ir.Value], inputs: Iterable[ir.Value]) -> Need:
    """What the end needs beside the beginning."""
    given = set(begin)
    after, sources = _needed(given, end)
    wanted = set(inputs)
    missing = [v for v in sources if v in wanted]
    if not missing:
        return Need({}, [])
    ways = {v: _way(v, after) for v in missing}
    below = _below(given, after)
    return Need(ways, _smallest(missing, after, below, set(end)))


def _needed(given: set[ir.Value], end: Sequence[ir.Value]) -> tuple[dict[ir.Value, list[ir.Value]], list[ir.Value]]:
    """For each value on the way to the end those computed from it, and the values that nothing computes."""
    after: dict[ir.Value, list[ir.Value]] = {v: [] for v in end}
    sources: list[ir.Value] = []
    waiting = list(end)
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or value in given:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None:
            if not value.is_initializer():
                sources.append(value)
            continue
        for used in used_by(producer):
            after.setdefault(used, []).append(value)
            waiting.append(used)
    return after, sources


def _way(value: ir.Value, after: dict[ir.Value, list[ir.Value]]) -> list[str]:
    """One shortest way from a value to the end, as names; a long one without its middle."""
    before: dict[ir.Value, ir.Value | None] = {value: None}
    waiting = deque([value])
    last = value
    while waiting:
        last = waiting.popleft()
        if not after.get(last):
            break
        for following in after[last]:
            if following not in before:
                before[following] = last
                waiting.append(following)
    way: list[str] = []
    step: ir.Value | None = last
    while step is not None:
        way.append(str(step.name))
        step = before[step]
    way.reverse()
    half = _LONGEST // 2
    return way if len(way) <= _LONGEST else [*way[:half], f"… {len(way) - 2 * half} more …", *way[-half:]]


def _below(given: set[ir.Value], after: dict[ir.Value, list[ir.Value]]) -> set[ir.Value]:
    """Values that depend on the given ones."""
    found: set[ir.Value] = set()
    waiting = [v for g in given for v in after.get(g, ())]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += after.get(value, ())
    return found


def _smallest(
    missing: list[ir.Value], after: dict[ir.Value, list[ir.Value]], below: set[ir.Value], end: set[ir.Value]
) -> list[ir.Value]:
    """A smallest vertex cut between what is missing and the rest: a value is an edge from its near to its far side.

    Of several the one nearest to the end: networkx gives the one nearest to where the flow goes.
    """
    import networkx  # type: ignore[import-untyped,unused-ignore]

    graph = networkx.DiGraph()
    for value, following in after.items():
        if value in below:
            continue
        graph.add_edge((value, "near"), (value, "far"), capacity=1 if value not in end else len(missing) + 1)
        for user in following:
            graph.add_edge((value, "far"), "end" if user in below else (user, "near"))
        if value in end:
            graph.add_edge((value, "far"), "end")
    for value in missing:
        graph.add_edge("inputs", (value, "near"))
    _, (near, far) = networkx.minimum_cut(graph, "inputs", "end")
    found = [v for v in after if v not in below and (v, "near") in near and (v, "far") in far]
    return sorted(found, key=lambda v: str(v.name)) or missing
