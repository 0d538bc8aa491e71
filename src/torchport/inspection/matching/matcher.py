"""Match the nodes, weights and inputs of two models, and tell certain pairs from guesses."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from torchport.inspection.diff.weights import same_content
from torchport.inspection.matching.indexed_graph import Side, stripped, weight_type
from torchport.inspection.matching.pairing import Rounds, Why
from torchport.irtools.node_reader import constant_tensor, is_constant_node
from torchport.irtools.traversal import subgraphs

# Which node of one model is which of another: by what is around it, and by its name where that helps.
#
# Used to say what changed between two models, and to compare them tensor by tensor. Optimizers fuse and rename: what
# has no partner is left without one.


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
    for node in function.all_nodes():
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
        order = {node: n for n, node in enumerate(a.all_nodes())}
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


# Which weight of one model is which of another, once their nodes are matched.
#
# Mostly the one of the same name is the one in the same place. Where they are two, the numbers tell which is meant:
# some exporters count names up, so that a name goes over to another weight. Where the numbers tell nothing, names are
# trusted if they were right elsewhere.

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
    return [*graph.initializers.values(), *(n.outputs[0] for n in graph if is_constant_node(n))]


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
    a, b = constant_tensor(one), constant_tensor(other)
    return a is not None and b is not None and same_content(a, b)


# Which pairs of a matching are more than a guess.

_TOLD = ("structure", "numbers")  # why two nodes are partners, where that is more than a guess
_EITHER_WAY = ("Add", "Mul")


def beyond_doubt(found: Matching) -> set[ir.Value]:
    """The first model's tensors whose partner is no guess: the same node makes them, of what are partners themselves.

    Example:
        >>> found = match(a, b)
        >>> sure = {v: found.values[v] for v in beyond_doubt(found)}
    """
    sure = {v for v in found.values if v.producer() is None or weight_type(v) is not None}
    for one, other in found.nodes:
        alike = one.op_identifier() == other.op_identifier()
        if alike and (found.why[one] in _TOLD or _reads_the_same(one, other, found.values, sure)):
            sure.update(v for v in one.outputs if v in found.values)
    return sure


def _reads_the_same(
    one: ir.Node, other: ir.Node, partners: Mapping[ir.Value, ir.Value], sure: Collection[ir.Value]
) -> bool:
    ours = [_before_casts(v) for v in stripped(one)]
    theirs = [_before_casts(v) for v in stripped(other)]
    if any(v is not None and v not in sure for v in ours):
        return False
    read = [None if v is None else partners[v] for v in ours]
    return read == theirs or (one.op_type in _EITHER_WAY and read[::-1] == theirs)


def _before_casts(value: ir.Value | None) -> ir.Value | None:
    """What it was before it was made a float of another width."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and all(_is_float(v) for v in (*node.inputs, *node.outputs)):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()
