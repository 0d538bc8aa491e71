"""A program for every size, by comparing programs that were captured at several sizes.

Some code wants sizes to be plain numbers: it hashes them, gives them to numpy, or writes them into source that it then
compiles, as einx does. A capture of it holds at one size. At several sizes such a model gives the same operators with
other numbers. A number that follows from the sizes by a simple formula in every program is replaced by the formula,
and the graph is captured once more, with sizes that vary. The proof tells whether the formulas hold.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchport.errors import CaptureError
from torchport.torch_compat.tracing import replayed

_LARGEST = 64  # factor or divisor of a size
_DIFFERENT = "captured at other sizes, the model calls other operators"


@dataclasses.dataclass(frozen=True)
class Place:
    """An axis of an input whose size varies."""

    index: int
    axis: int

    def size(self, tensors: Sequence[torch.Tensor]) -> int:
        return tensors[self.index].shape[self.axis]


class Fitted(torch.nn.Module):
    """The graph of several programs as a module, with formulas in the place of the numbers that differ.

    Args:
        programs: captured with sizes that do not vary.
        tensors: the inputs each was captured with.
        places: the axes that are to vary, one for each size.

    Raises:
        CaptureError: the programs differ in more than numbers, or a number follows from sizes by no simple formula.
    """

    _graph: torch.fx.GraphModule

    def __init__(
        self,
        programs: Sequence[torch.export.ExportedProgram],
        tensors: Sequence[Sequence[torch.Tensor]],
        places: Sequence[Place],
    ) -> None:
        super().__init__()
        graphs: list[Any] = [program.module(check_guards=False) for program in programs]
        self.__dict__["_graph"] = graphs[0]  # no part of this module: weights keep the names they have without it
        if isinstance(getattr(graphs[0], "model", None), torch.nn.Module):
            self.model = graphs[0].model
        sizes = [[place.size(given) for place in places] for given in tensors]
        _Merge(graphs, places, sizes).apply()

    def forward(self, *tensors: torch.Tensor) -> Any:
        return replayed(self._graph, tensors)


class _Merge:
    """Puts formulas into the first of several graphs."""

    def __init__(
        self, modules: Sequence[torch.fx.GraphModule], places: Sequence[Place], sizes: Sequence[Sequence[int]]
    ) -> None:
        self._modules = modules
        self._places = places
        self._sizes = sizes
        self._nodes = [list(module.graph.nodes) for module in modules]
        self._numbers = [{node: n for n, node in enumerate(nodes)} for nodes in self._nodes]
        self._inputs = [node for node in self._nodes[0] if node.op == "placeholder"]
        self._last = self._inputs[-1]
        self._known: dict[Any, torch.fx.Node] = {}

    def apply(self) -> None:
        if len({len(nodes) for nodes in self._nodes}) != 1:
            raise CaptureError(_DIFFERENT)
        for nodes in zip(*self._nodes, strict=True):
            self._check_alike(nodes)
            first = nodes[0]
            first.args = self._merged([node.args for node in nodes])
            first.kwargs = self._merged([dict(node.kwargs) for node in nodes])

    def _check_alike(self, nodes: Sequence[torch.fx.Node]) -> None:
        if len({(node.op, str(node.target)) for node in nodes}) != 1:
            raise CaptureError(_DIFFERENT)
        if nodes[0].op == "get_attr":
            path = operator.attrgetter(str(nodes[0].target))
            first, *others = (path(module) for module in self._modules)
            if not all(other is first or _equal(first, other) for other in others):
                raise CaptureError("captured at other sizes, the model has other constants")

    def _merged(self, values: Sequence[Any]) -> Any:
        """One argument of several nodes: what they have in common, or a formula."""
        first = values[0]
        if isinstance(first, torch.fx.Node):
            if len({graph.get(value) for graph, value in zip(self._numbers, values, strict=True)}) != 1:
                raise CaptureError(_DIFFERENT)
            return first
        if isinstance(first, (list, tuple, dict)):
            if any(len(value) != len(first) for value in values):
                raise CaptureError(_DIFFERENT)
            if isinstance(first, dict):
                return {key: self._merged([value[key] for value in values]) for key in first}
            merged = [self._merged(column) for column in zip(*values, strict=True)]
            return tuple(merged) if isinstance(first, tuple) else merged
        if all(type(value) is type(first) and value == first for value in values):
            return first
        return self._formula(values)

    def _formula(self, values: Sequence[Any]) -> torch.fx.Node:
        if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
            raise CaptureError(_DIFFERENT)
        key = tuple(values)
        if key not in self._known:
            names, formula = _found(values, self._sizes)
            self._known[key] = self._inserted(formula, *(self._size(n) for n in names))
        return self._known[key]

    def _size(self, number: int) -> torch.fx.Node:
        place = self._places[number]
        if place not in self._known:
            given = self._inputs[place.index]
            self._known[place] = self._inserted(torch.ops.aten.sym_size.int, given, place.axis)
        return self._known[place]

    def _inserted(self, function: Callable[..., Any], *arguments: Any) -> torch.fx.Node:
        """A call after the inputs and what was inserted before. The graph is run node by node, never compiled."""
        with self._modules[0].graph.inserting_after(self._last):
            self._last = self._modules[0].graph.call_function(function, arguments)
        return self._last


def _equal(first: Any, other: Any) -> bool:
    if not isinstance(first, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return first.shape == other.shape and first.dtype == other.dtype and torch.equal(first, other)


Formula = tuple[tuple[int, ...], Callable[..., Any]]


def _found(values: Sequence[Any], sizes: Sequence[Sequence[int]]) -> Formula:
    """The simplest formula that gives the value of each program from its sizes, with the numbers of the sizes in it."""
    whole = all(isinstance(value, int) for value in values)
    for names, formula in _formulas(values, sizes) if whole else _scales(values, sizes):
        if all(_same(formula(*(row[n] for n in names)), v) for row, v in zip(sizes, values, strict=True)):
            return names, formula
    raise CaptureError(f"the numbers {', '.join(map(str, values))} of captures at several sizes have no simple formula")


def _same(found: Any, value: Any) -> bool:
    return found == value if isinstance(value, int) else math.isclose(found, value, rel_tol=1e-12)


def _formulas(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Iterator[Formula]:
    """Of whole numbers: a line in one size, in a product, in two sizes; then divisions that are rounded."""
    count = len(sizes[0])
    products = [c for length in (1, 2, 3) for c in itertools.combinations_with_replacement(range(count), length)]
    for names in products:
        yield from _lines(names, [math.prod(row[n] for n in names) for row in sizes], values)
    for a, b in itertools.combinations(range(count), 2):
        for p, q in ((1, 1), (1, -1), (-1, 1)):
            mixed = [p * row[a] + q * row[b] for row in sizes]
            offset = values[0] - mixed[0]
            yield (a, b), lambda x, y, p=p, q=q, offset=offset: p * x + q * y + offset
    rounded = list(_divisions(values, sizes))
    yield from (formula for offset, formula in sorted(rounded, key=lambda found: found[0] != 0))


def _divisions(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, Formula]]:
    """Multiples of a size divided and rounded down or up, each with its offset."""
    for name, divisor in itertools.product(range(len(sizes[0])), range(2, _LARGEST)):
        for up in (0, divisor - 1):
            parts = [(row[name] + up) // divisor for row in sizes]
            for factor, offset in _factors(parts, values):
                yield offset, ((name,), lambda x, d=divisor, u=up, f=factor, o=offset: f * ((x + u) // d) + o)


def _lines(names: tuple[int, ...], numbers: Sequence[int], values: Sequence[int]) -> Iterator[Formula]:
    for factor, offset in _factors(numbers, values):
        yield names, lambda *given, f=factor, o=offset: f * math.prod(given) + o


def _factors(numbers: Sequence[int], values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The whole slope and offset of the line through the first two points that differ."""
    pairs = list(zip(numbers, values, strict=True))
    other = next((pair for pair in pairs if pair[0] != pairs[0][0]), None)
    if other is None:
        return
    slope, rest = divmod(other[1] - pairs[0][1], other[0] - pairs[0][0])
    if not rest and slope and abs(slope) <= 2 * _LARGEST**2:
        yield slope, pairs[0][1] - slope * pairs[0][0]


def _scales(values: Sequence[float], sizes: Sequence[Sequence[int]]) -> Iterator[Formula]:
    """Of other numbers: a constant times a power of a size, as 1 / n and 1 / √n."""
    count = len(sizes[0])
    for names in [c for length in (1, 2) for c in itertools.combinations_with_replacement(range(count), length)]:
        number = math.prod(sizes[0][n] for n in names)
        for power in (1.0, -1.0, 0.5, -0.5):
            factor = values[0] / number**power
            yield names, lambda *given, f=factor, p=power: f * float_power(math.prod(given), p)


def float_power(number: Any, power: float) -> Any:
    """A power of a size; roots of symbolic sizes are torch's."""
    if not isinstance(number, torch.SymInt):
        return number**power
    root = torch.sym_sqrt(number) if abs(power) == 0.5 else torch.sym_float(number)
    return root if power > 0 else 1.0 / root
