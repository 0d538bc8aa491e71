"""Where a dimension goes in a reshape.

A reshape keeps the elements in row-major order, so a dimension is known by its stride: by how many elements lie inside
it. The axis of the result that has room for it at that stride holds it, alone or folded with its neighbors:

    [1, 196, 768] -> [1, 196, 12, 64]     axis 0, alone
    [1, 12, 197, 64] -> [12, 197, 64]     axis 0, folded with 12 that lie inside it
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

_MOST = 8  # ways to read one reshape


@dataclasses.dataclass(frozen=True)
class Placement:
    """One way to read a reshape.

    Attributes:
        now: the shape of the result.
        inner: for each of its axes, how many elements lie inside the dimension where it is folded with others.
        sources: for an axis that holds it, the axes of the input whose product gives its size, and times what.
    """

    now: tuple[int, ...]
    inner: tuple[int, ...]
    sources: dict[int, tuple[tuple[int, ...], Fraction]]


def placements(
    was: Sequence[int], now: Sequence[int], inner: Sequence[int], out: Sequence[int], size: int
) -> list[Placement]:
    """The ways in which a reshape to `out` carries the dimension, the likeliest first; none where there is none.

    Args:
        was: the input's shape at the old size.
        now: the same at the new size.
        inner: of each axis of the input, the elements inside the dimension.
        out: the result's shape at the old size.
        size: the old size of the dimension.
    """
    axes = [axis for axis, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
    groups = list(_groups(was, out))
    ways = [_ways(axis, was, inner, out, size, groups) for axis in axes]
    found = (_placed(axes, way, was, now, out) for way in itertools.islice(itertools.product(*ways), _MOST))
    return [placement for placement in found if placement is not None]


_Way = tuple[int, int, tuple[int, ...]]  # the result's axis, elements inside, axes of the input that make it up


def _ways(
    axis: int,
    was: Sequence[int],
    inner: Sequence[int],
    out: Sequence[int],
    size: int,
    groups: list[tuple[list[int], list[int]]],
) -> list[_Way]:
    joined = _joined(axis, was, inner, groups)
    stride = inner[axis] * math.prod(was[axis + 1 :])
    own = size if was[axis] % (size * inner[axis]) == 0 else was[axis] // inner[axis]
    whole = {outs[0] for _, outs in groups if len(outs) == 1}  # not split: heads are split off behind a batch
    found = [(o, stride // _after(out, o)) for o in range(len(out)) if _has_room(out, o, stride, own)]
    alone = {o for o, within in found if within == 1 and out[o] == own}
    found.sort(key=lambda way: (way[0] not in alone, way[0] in alone and way[0] != axis, way[0] in whole, way[0]))
    if joined and was[axis] == own:
        return joined
    split: list[_Way] = [(o, within, (axis,)) for o, within in found]
    if own == 1:  # between two axes it may be of either; the outer one leaves the inner one what it was
        split.sort(key=lambda way: (way[0] not in alone, was[axis] > 1 and way[1] > 1))
        return split + [way for way in joined if way[:2] not in {w[:2] for w in split}]
    return split if alone or not joined else joined


def _joined(
    axis: int, was: Sequence[int], inner: Sequence[int], groups: list[tuple[list[int], list[int]]]
) -> list[_Way]:
    """The way of an axis that becomes one with its neighbors, or stays what it is."""
    for ins, outs in groups:
        if axis in ins and len(outs) == 1:
            after = math.prod(was[i] for i in ins if i > axis)
            return [(outs[0], inner[axis] * after, tuple(ins))]
    return []


def _after(shape: Sequence[int], axis: int) -> int:
    return math.prod(shape[axis + 1 :])


def _has_room(out: Sequence[int], axis: int, stride: int, size: int) -> bool:
    after = _after(out, axis)
    return after > 0 and stride % after == 0 and stride >= after and out[axis] % (stride // after * size) == 0


def _placed(
    axes: Sequence[int], ways: Sequence[_Way], was: Sequence[int], now: Sequence[int], out: Sequence[int]
) -> Placement | None:
    result, within = list(out), [1] * len(out)
    sources: dict[int, tuple[tuple[int, ...], Fraction]] = {}
    for axis, (to, inside, ins) in zip(axes, ways, strict=True):
        factor = Fraction(out[to], math.prod(was[i] for i in ins))
        grown = factor * math.prod(now[i] for i in ins)
        if (to in sources and sources[to] != (ins, factor)) or grown.denominator != 1:
            return None
        result[to], within[to], sources[to] = int(grown), inside, (ins, factor)
        if len(ins) == 1 and now[axis] % was[axis] and factor != 1:
            return None  # not a multiple: it cannot be folded with others
    return Placement(tuple(result), tuple(within), sources)


def _groups(was: Sequence[int], out: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of axes of both that hold the same elements, axes of one left out."""
    left = [axis for axis, size in enumerate(was) if size != 1]
    right = [axis for axis, size in enumerate(out) if size != 1]
    ins: list[int] = []
    outs: list[int] = []
    while left or right:
        a, b = math.prod(was[i] for i in ins), math.prod(out[i] for i in outs)
        if (a <= b and left) or not right:
            ins.append(left.pop(0))
        else:
            outs.append(right.pop(0))
        if math.prod(was[i] for i in ins) == math.prod(out[i] for i in outs):
            yield ins, outs
            ins, outs = [], []
