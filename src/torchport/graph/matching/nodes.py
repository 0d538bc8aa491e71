"""Which node of one model is which of another: by what is around it, and by its name where that helps.

Used to say what changed between two models, and to compare them tensor by tensor. Optimizers fuse and rename: what has
no partner is left without one.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Sequence

import onnx_ir as ir

from torchport.graph.matching.rounds import Rounds, Why
from torchport.graph.matching.sides import Side
from torchport.graph.matching.weights import pair_weights
from torchport.irtools.node_reader import weight_type
from torchport.irtools.traversal import subgraphs


@dataclasses.dataclass
class Matching:
    """Pairs of nodes and of values, and what has no partner.

    Attributes:
        nodes: in the order of the first model; those inside a branch or a loop come after the node that holds them.
        values: what matched nodes make, inputs, and weights; from the first model to the second.
        only_a: nodes of the first model without a partner. What is inside one of them is not listed.
        only_b: the same for the second.
        why: for the first model's nodes, what showed their partner: the ``structure`` around it, the ``numbers`` of its
            weights, its ``name``, its ``neighbors``, or the ``place`` in which there is another operator now.
        outputs: positions among the graph's outputs that are each other's.
        functions: local functions that are each other's, and how they match inside.
        functions_only_a: local functions of the first model without a partner.
        functions_only_b: the same for the second.
    """

    nodes: list[tuple[ir.Node, ir.Node]] = dataclasses.field(default_factory=list)
    values: dict[ir.Value, ir.Value] = dataclasses.field(default_factory=dict)
    only_a: list[ir.Node] = dataclasses.field(default_factory=list)
    only_b: list[ir.Node] = dataclasses.field(default_factory=list)
    why: dict[ir.Node, Why] = dataclasses.field(default_factory=dict)
    outputs: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    functions: list[tuple[ir.Function, ir.Function, Matching]] = dataclasses.field(default_factory=list)
    functions_only_a: list[ir.Function] = dataclasses.field(default_factory=list)
    functions_only_b: list[ir.Function] = dataclasses.field(default_factory=list)


def match(a: ir.Model, b: ir.Model) -> Matching:
    """Find which node of a model is which of another. Neither is changed; of weights a few numbers are read.

    Example:
        >>> found = match(tp.graph.load("fp32.onnx"), tp.graph.load("optimized.onnx"))
        >>> [(n.name, m.name) for n, m in found.nodes], [n.name for n in found.only_a]
    """
    pairs = _function_pairs(a, b)
    names = {id(f): number for number, pair in enumerate(pairs) for f in pair}
    matchers = [_Translation(m, names) for m in (a, b)]
    found = _Matcher(*matchers).run(a.graph, b.graph)
    found.functions = [(f, g, _Matcher(*matchers, local=(f, g)).run(f.graph, g.graph)) for f, g in pairs]
    found.functions_only_a = [f for f in a.functions.values() if id(f) not in names]
    found.functions_only_b = [f for f in b.functions.values() if id(f) not in names]
    return found


def _function_pairs(a: ir.Model, b: ir.Model) -> list[tuple[ir.Function, ir.Function]]:
    """By identifier, else by what is inside, where that is told apart."""
    pairs = [(f, b.functions[i]) for i, f in a.functions.items() if i in b.functions]
    ones, others = (
        _alone([f for i, f in one.functions.items() if i not in other.functions], one)
        for one, other in ((a, b), (b, a))
    )
    return pairs + [(f, others[key]) for key, f in ones.items() if key in others]


def _alone(functions: Iterable[ir.Function], model: ir.Model) -> dict[Hashable, ir.Function]:
    found: dict[Hashable, list[ir.Function]] = collections.defaultdict(list)
    for function in functions:
        found[_skeleton(function, model)].append(function)
    return {key: alike[0] for key, alike in found.items() if len(alike) == 1}


def _skeleton(function: ir.Function, model: ir.Model) -> Hashable:
    """The operators inside and which reads which, calls of other local functions by how much they take and give."""
    numbers = {v: n for n, v in enumerate(function.inputs)}
    steps: list[Hashable] = []
    for node in ir.traversal.RecursiveGraphIterator(function.graph):
        numbers.update({v: len(numbers) + n for n, v in enumerate(node.outputs)})
        kind = node.op_identifier()
        reads = tuple(numbers.get(v, -1) if v is not None else -2 for v in node.inputs)
        steps.append(("local" if kind in model.functions else kind, tuple(sorted(node.attributes)), reads))
    return len(function.inputs), tuple(numbers.get(v, -1) for v in function.outputs), tuple(steps)


class _Translation:
    """Operators of one model as both models call them: a local function may have another name in the other."""

    def __init__(self, model: ir.Model, names: dict[int, int]) -> None:
        self.versions = dict(model.opset_imports)
        self._functions = {i: names[id(f)] for i, f in model.functions.items() if id(f) in names}

    def __call__(self, kind: ir.OperatorIdentifier) -> Hashable:
        domain, name, overload = kind
        return self._functions.get(kind, ("" if domain == "ai.onnx" else domain, name, overload))


class _Matcher:
    """Matches two graphs and those inside their nodes."""

    def __init__(
        self, a: _Translation, b: _Translation, *, local: tuple[ir.Function, ir.Function] | None = None
    ) -> None:
        self._translations = (a, b)
        functions = local or (None, None)
        self._versions = [
            t.versions if f is None else dict(f.opset_imports) for t, f in zip((a, b), functions, strict=True)
        ]
        self._by_position = local is not None
        self._found = Matching()
        self._graphs: list[tuple[ir.Graph, ir.Graph]] = []

    def run(self, a: ir.Graph, b: ir.Graph) -> Matching:
        self._found.outputs = self._match_graphs(a, b, by_position=self._by_position)
        pair_weights(self._found, self._graphs)
        self._sort(a)
        self._pair_by_use(a, b)
        return self._found

    def _match_graphs(self, a: ir.Graph, b: ir.Graph, *, by_position: bool) -> list[tuple[int, int]]:
        found = self._found
        self._graphs.append((a, b))
        numbers: dict[Hashable, int] = {}
        given = zip((a, b), self._versions, self._translations, strict=True)
        sides = [Side(graph, versions, translate, numbers) for graph, versions, translate in given]
        ones, others = ([v for v in g.inputs if not v.is_initializer()] for g in (a, b))
        inputs = {ones[i]: others[j] for i, j in pair_interface(ones, others, by_position=by_position)}
        outer = {v: found.values[v] for v in sides[0].readers if v in found.values and weight_type(v) is None}
        outputs = pair_interface(a.outputs, b.outputs, by_position=by_position)
        rounds = Rounds(sides[0], sides[1], {**outer, **inputs}, outputs)
        rounds.run()
        found.values.update(inputs)
        self._note(rounds)
        return outputs

    def _note(self, rounds: Rounds) -> None:
        found = self._found
        pairs = [(rounds.a.nodes[n], rounds.b.nodes[m]) for n, m in rounds.pairs]
        for (one, other), why in zip(pairs, rounds.why, strict=True):
            found.nodes.append((one, other))
            found.why[one] = why
            found.values.update(zip(one.outputs, other.outputs, strict=False))
        for side, partner, alone in zip(
            (rounds.a, rounds.b), rounds.partner, (found.only_a, found.only_b), strict=True
        ):
            alone += [node for node, other in zip(side.nodes, partner, strict=True) if other is None]
        for one, other in pairs:
            for inner, outer in zip(subgraphs(one), subgraphs(other), strict=False):
                self._match_graphs(inner, outer, by_position=True)

    def _sort(self, a: ir.Graph) -> None:
        found = self._found
        order = {node: n for n, node in enumerate(ir.traversal.RecursiveGraphIterator(a))}
        found.nodes.sort(key=lambda pair: order[pair[0]])
        ones, others = {n for n, _ in found.nodes}, {m for _, m in found.nodes}
        found.only_a = [n for n in found.only_a if n not in ones]  # constants found theirs last
        found.only_b = [m for m in found.only_b if m not in others]

    def _pair_by_use(self, a: ir.Graph, b: ir.Graph) -> None:
        """Values of the same name that the same nodes read in the same slots, though what makes them was fused."""
        partner = dict(self._found.nodes)
        there = {v.name: v for node in self._found.only_b if node.graph is b for v in node.outputs if v.name}
        ends = {(a.outputs[i], b.outputs[j]) for i, j in self._found.outputs}
        for one in (v for node in self._found.only_a if node.graph is a for v in node.outputs):
            other = there.get(one.name or "")
            if other is None or one in self._found.values:
                continue
            uses = {(partner.get(use.node), use.idx) for use in one.uses()}
            same = uses == {(use.node, use.idx) for use in other.uses()}
            if same and (uses or (one, other) in ends):
                self._found.values[one] = other


def pair_interface(a: Sequence[ir.Value], b: Sequence[ir.Value], *, by_position: bool = False) -> list[tuple[int, int]]:
    """Inputs or outputs that are each other's: by name, then what is left in order, if the types agree.

    Args:
        a: those of one graph.
        b: those of the other.
        by_position: names mean nothing, as in loop bodies and functions.
    """
    there = {v.name: j for j, v in enumerate(b)}
    named = [] if by_position else [(i, there[v.name]) for i, v in enumerate(a) if v.name in there]
    ones = [i for i in range(len(a)) if i not in {i for i, _ in named}]
    others = [j for j in range(len(b)) if j not in {j for _, j in named}]
    return sorted([*named, *((i, j) for i, j in zip(ones, others, strict=False) if by_position or _alike(a[i], b[j]))])


def _alike(one: ir.Value, other: ir.Value) -> bool:
    ranks = [None if v.shape is None else v.shape.rank() for v in (one, other)]
    return one.dtype == other.dtype and (None in ranks or ranks[0] == ranks[1])
