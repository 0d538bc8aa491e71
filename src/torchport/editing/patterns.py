"""Match a pattern that is written as ONNX text or as a Python function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from torchport.editing.fragment import Fragment
from torchport.errors import InputError, first_line
from torchport.irtools import node_reader, schemas
from torchport.irtools.names import where
from torchport.irtools.traversal import Match, Scope, in_order, opset_of, scoped_nodes, used_values

# Find a pattern that is written in ONNX text.
#
# It is followed in both directions, so several outputs cost no search over all pairs of nodes.

_COMMUTATIVE = frozenset(
    ("Add", "Mul", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Min", "Mean", "Sum")
)
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TOLERANCE = 1e-6  # of a constant in a pattern, so that 0.70710678 finds its float32; zero and one are exact


def matches(
    model: ir.Model, pattern: Fragment, blocked: list[str], *, exact: bool = False, without: Sequence[ir.Node] = ()
) -> list[Match]:
    """Where a pattern is.

    Args:
        model: where to look: its graph, branches and functions.
        pattern: what for.
        blocked: takes the reasons why a place cannot be replaced.
        exact: inputs in the very same order, and the very same attributes.
        without: nodes that are not to be in any of the places.
    """
    found: list[Match] = []
    taken = set(without)
    first = _order(pattern)[0]
    for scope, node in scoped_nodes(model):
        if node in taken or node.op_type != first.op_type:
            continue
        search = _Search(pattern, scope, exact=exact)
        match = search.at(node, taken, blocked)
        if match is not None:
            found.append(match)
            taken.update(match.nodes)
    return found


def _order(pattern: Fragment) -> list[ir.Node]:
    """The pattern's nodes, from its first output on; its constants are compared by value, and are no nodes to find."""
    outputs = set(pattern.graph.outputs)
    nodes = [n for n in pattern.graph if not node_reader.is_constant_node(n) or outputs.intersection(n.outputs)]
    head = next((v.producer() for v in pattern.graph.outputs if v.producer() is not None), nodes[-1])
    return sorted(nodes, key=lambda n: n is not head)


@dataclasses.dataclass(frozen=True)
class _State:
    """What the pattern's nodes, values and attribute variables stand for so far."""

    nodes: Mapping[ir.Node, ir.Node]
    values: Mapping[ir.Value, ir.Value | None]
    attributes: Mapping[str, ir.Attr | None]


class _Search:
    """Looks for one pattern in one scope."""

    def __init__(self, pattern: Fragment, scope: Scope, *, exact: bool) -> None:
        self._pattern = pattern
        self._scope = scope
        self._exact = exact
        self._opset = opset_of(scope) or 1

    def at(self, node: ir.Node, taken: set[ir.Node], blocked: list[str]) -> Match | None:
        first, *rest = _order(self._pattern)
        reasons: list[str] = []
        for state in self._fitted(first, node, _State({}, {}, {})):
            for whole in self._extended(state, rest, node.graph):
                reason = self._reason_against(whole, taken)
                if not reason:
                    return self._match(whole)
                reasons.append(reason)
        blocked += reasons[:1]
        return None

    def _extended(self, state: _State, rest: list[ir.Node], graph: ir.Graph | None) -> Iterator[_State]:
        """Every way to find the rest of the pattern; without recursion, as a module may have a thousand nodes."""
        stack: list[Iterator[tuple[_State, list[ir.Node]]]] = [iter([(state, rest)])]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
            elif item[1]:
                stack.append(self._steps(*item, graph))
            else:
                yield item[0]

    def _steps(
        self, state: _State, rest: list[ir.Node], graph: ir.Graph | None
    ) -> Iterator[tuple[_State, list[ir.Node]]]:
        node, candidates = self._next(state, rest, graph)
        others = [n for n in rest if n is not node]
        for candidate in candidates:
            if candidate.graph is graph and candidate not in state.nodes.values():
                yield from ((further, others) for further in self._fitted(node, candidate, state))

    def _next(self, state: _State, rest: list[ir.Node], graph: ir.Graph | None) -> tuple[ir.Node, Sequence[ir.Node]]:
        """The pattern's node with the fewest candidates: who makes a known value, who uses one, or any."""
        for node in rest:
            made = next((state.values[v] for v in node.outputs if v in state.values), None)
            producer = None if made is None else made.producer()
            if any(v in state.values for v in node.outputs):
                return node, [] if producer is None else [producer]
        for node in rest:
            known = next((v for i in node.inputs if i is not None and (v := state.values.get(i)) is not None), None)
            if known is not None:
                return node, list(dict.fromkeys(use.node for use in known.uses()))
        return rest[0], [] if graph is None else list(graph)

    def _fitted(self, pattern: ir.Node, node: ir.Node, state: _State) -> Iterator[_State]:
        """What follows if the pattern's node is this one; nothing if it cannot be."""
        if pattern.op_identifier() != node.op_identifier() or len(pattern.outputs) > len(node.outputs):
            return
        attributes = self._attributes(pattern, node, state.attributes)
        inputs = node.inputs[: schemas.used_inputs(node)]
        wanted = pattern.inputs[: schemas.used_inputs(pattern)]
        if attributes is None or len(inputs) != len(wanted):
            return
        commutes = not self._exact and len(inputs) == 2 and node.op_type in _COMMUTATIVE and not node.domain
        for order in [inputs, inputs[::-1]] if commutes and inputs[0] is not inputs[1] else [inputs]:
            values = self._bound(
                [*zip(wanted, order, strict=True), *zip(pattern.outputs, node.outputs, strict=False)], state
            )
            if values is not None:
                yield _State({**state.nodes, pattern: node}, values, attributes)

    def _bound(
        self, pairs: list[tuple[ir.Value | None, ir.Value | None]], state: _State
    ) -> dict[ir.Value, ir.Value | None] | None:
        values = dict(state.values)
        for wanted, given in pairs:
            if wanted is None or given is None:
                if wanted is not given:
                    return None
            elif values.setdefault(wanted, given) is not given or not self._can_be(wanted, given):
                return None
        return values

    def _can_be(self, wanted: ir.Value, given: ir.Value) -> bool:
        producer, maker = wanted.producer(), given.producer()
        if producer is None:
            return True
        if node_reader.is_constant_node(producer) and wanted not in self._pattern.graph.outputs:
            return _same_constant(wanted, given, exact=self._exact)
        return maker is not None and maker.op_type == producer.op_type and wanted.index() == given.index()

    def _attributes(
        self, pattern: ir.Node, node: ir.Node, bound: Mapping[str, ir.Attr | None]
    ) -> dict[str, ir.Attr | None] | None:
        found = dict(bound)
        names = {*pattern.attributes, *node.attributes} if self._exact else {*pattern.attributes}
        for name in names:
            wanted = self._attribute(pattern, name) if self._exact else pattern.attributes[name]
            given = self._attribute(node, name)
            if wanted is not None and wanted.is_ref() and not self._exact:
                variable = str(wanted.ref_attr_name)
                if variable in found and not _same_attribute(found[variable], given):
                    return None
                found[variable] = given
            elif not _same_attribute(wanted, given):
                return None
        return found

    def _attribute(self, node: ir.Node, name: str) -> ir.Attr | None:
        """An attribute, or what it is when it is left out."""
        given = node.attributes.get(name)
        schema = schemas.schema_at(node.op_type, self._opset) if given is None and not node.domain else None
        known = None if schema is None else schema.attributes.get(name)
        if known is None or not known.default_value.name:
            return given
        return ir.serde.deserialize_attribute(known.default_value)

    def _reason_against(self, state: _State, taken: set[ir.Node]) -> str:
        nodes, outputs = set(state.nodes.values()), {state.values.get(v) for v in self._pattern.graph.outputs}
        if nodes & taken:
            return "it overlaps with another such place"
        for variable in self._pattern.graph.inputs:
            value = state.values.get(variable)
            if value is not None and value.producer() in nodes:
                return f"'{value.name}' would be made by what it goes into"
        for value in (v for n in nodes for v in n.outputs if v not in outputs):
            users = [use.node for use in value.uses() if use.node not in nodes]
            if users or value.is_graph_output():
                return f"'{value.name}' is used by {where(users[0]) if users else 'the model: it is an output'} too"
        return _circle(list(state.values.values()), nodes, outputs) if len(outputs) > 1 else ""

    def _match(self, state: _State) -> Match:
        graph = self._pattern.graph
        inputs = {str(v.name): state.values.get(v) for v in graph.inputs}
        outputs = tuple(v for o in graph.outputs if (v := state.values.get(o)) is not None)
        return Match(in_order(state.nodes.values()), inputs, outputs, state.attributes, self._scope)


def _circle(values: list[ir.Value | None], nodes: set[ir.Node], outputs: set[ir.Value | None]) -> str:
    """Whether something outside leads from an output back in: then the nodes cannot become one step."""
    waiting = [v for v in values if v is not None and v.producer() not in nodes]
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in outputs:
            return f"what leads from '{value.name}' comes back into it"
        producer = value.producer()
        if value not in seen and producer is not None:
            seen.add(value)
            waiting += used_values(producer)
    return ""


def _same_attribute(one: ir.Attr | None, other: ir.Attr | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.is_ref() or other.is_ref():
        return one.is_ref() and other.is_ref() and one.ref_attr_name == other.ref_attr_name
    if one.type != other.type or one.type in _GRAPHS:
        return False
    if one.type == ir.AttributeType.TENSOR:
        a, b = one.as_tensor(), other.as_tensor()
        return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if one.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return list(one.value) == list(other.value)
    return bool(one.value == other.value)


def _same_constant(wanted: ir.Value, given: ir.Value, *, exact: bool) -> bool:
    """Whether a value is the pattern's constant; one number may have any rank, and be of any float or integer type."""
    tensor = given.const_value if given.producer() is None else None
    one = node_reader.constant(wanted)
    if one is None or (tensor is not None and tensor.size != one.size):
        return False  # a large weight is not read
    other = node_reader.constant(given)
    if other is None or (one.shape != other.shape and (exact or not one.size == other.size == 1)):
        return False
    if exact or {one.dtype.kind, other.dtype.kind} & {"O", "b"}:
        return one.dtype == other.dtype and bool((one == other).all())
    kinds = {"i" if array.dtype.kind in "iu" else "f" for array in (one, other)}
    if kinds != {"f"}:
        return len(kinds) == 1 and bool((one.reshape(-1) == other.reshape(-1)).all())
    with np.errstate(over="ignore"):
        one = one.reshape(-1).astype(other.dtype).astype(np.float64)
    other = other.reshape(-1).astype(np.float64)
    near = np.isclose(other, one, rtol=_TOLERANCE, atol=0, equal_nan=True)
    return bool(np.where(np.isin(one, (0, 1)), one == other, near).all())


# Find a pattern that is a Python function, with onnxscript's matcher.


def python_matches(model: ir.Model, what: Callable[..., Any], blocked: list[str]) -> list[Match]:
    """Where onnxscript finds a pattern in the style of its rewriter."""
    from onnxscript.rewriter import pattern

    try:
        given = what if isinstance(what, pattern.RewriteRule) else pattern.RewriteRule(what, lambda *_, **__: None)
    except Exception as error:  # the function is the user's: it may raise anything
        raise InputError(
            f"the function is no pattern: {first_line(error)}",
            next_step="write it like those of onnxscript's rewriter: lambda op, x: op.Relu(x)",
        ) from error
    rules = list(given.commute())
    found: list[Match] = []
    taken: set[ir.Node] = set()
    with _constants_shown(model):
        for scope, node in scoped_nodes(model):
            match = None if node in taken else _match_at(rules, model, scope, node, blocked)
            if match is not None and not taken.intersection(match.nodes):
                found.append(match)
                taken.update(match.nodes)
    return found


def _match_at(rules: list[Any], model: ir.Model, scope: Scope, node: ir.Node, blocked: list[str]) -> Match | None:
    body: Any = node.graph if node.graph is not getattr(scope, "graph", None) else scope
    for rule in rules:
        match = rule.match(model, body, node)
        if match and _tells_zero(match):
            inputs = {k: v for k, v in match.bindings.items() if v is None or isinstance(v, ir.Value)}
            attributes = {k: v for k, v in match.bindings.items() if isinstance(v, ir.Attr)}
            nodes = in_order(match.nodes)
            return Match(nodes, inputs, tuple(match.outputs), attributes, scope, dict(match.bindings))
        if match is not None and not match and "other uses" in str(match.reason):
            blocked.append(f"what is made before {where(node)} is used elsewhere too")
    return None


def _tells_zero(match: Any) -> bool:
    """onnxscript takes 1e-8 for zero, and a weight that the caller may give for a constant."""
    from onnxscript.rewriter import pattern

    for wanted, value in match.value_bindings.items():
        if isinstance(wanted, pattern.Constant) and value is not None:
            numbers = wanted.value if isinstance(wanted.value, (list, tuple)) else [wanted.value]
            found = value.const_value.numpy().reshape(-1).tolist()
            if value.is_graph_input() or any(w in (0, 1) and w != f for w, f in zip(numbers, found, strict=True)):
                return False
    return True


class _constants_shown:  # noqa: N801  (a context manager, used like a function)
    """onnxscript looks for a constant in the value; those of Constant nodes are put there for as long as it looks."""

    def __init__(self, model: ir.Model) -> None:
        every = (n.outputs[0] for _, n in scoped_nodes(model) if node_reader.is_constant_node(n))
        self._values = [v for v in every if v.const_value is None]

    def __enter__(self) -> None:
        for value in self._values:
            array = node_reader.constant(value)
            if array is not None and array.dtype != object:
                value.const_value = ir.tensor(array, name=value.name)

    def __exit__(self, *_: object) -> None:
        for value in self._values:
            value.const_value = None
