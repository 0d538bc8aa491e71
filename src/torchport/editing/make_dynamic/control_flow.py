"""How a dimension goes through branches, loops and local functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx import TypeProto

from torchport.editing.make_dynamic.constants import grown
from torchport.editing.make_dynamic.propagation import Walk
from torchport.editing.make_dynamic.value_pair import Fact, dims_of, tensor_type
from torchport.irtools.traversal import subgraphs


def call(walk: Walk, node: ir.Node) -> None:
    """A local function: its body with what this call gives it. It serves other calls too, so it is not changed."""
    function = walk.model.functions[node.op_identifier()]
    given = {a.name: a for a in walk.proto(node).attribute}
    defaults = {a.name: ir.serde.serialize_attribute(a) for a in function.attributes.values() if a.value is not None}
    for n, value in enumerate(function.inputs):
        outer = node.inputs[n] if n < len(node.inputs) else None
        walk.facts[value] = Fact(TypeProto(), TypeProto()) if outer is None else walk.fact(outer)
    before = walk.inside({**defaults, **given})
    try:
        walk.graph(function)
    finally:
        walk.inside(before)
    for value, inner in zip(node.outputs, function.outputs, strict=False):
        walk.facts[value] = walk.fact(inner)


def control_flow(walk: Walk, node: ir.Node) -> None:
    """A node with bodies of its own."""
    if node.op_type == "If":
        _branches(walk, node)
    elif node.op_type in ("Loop", "Scan"):
        _loop(walk, node)
    elif any(walk.fact(v).changed for v in node.inputs if v is not None):
        raise walk.refusal(node, f"{node.op_type} is not known well enough")
    else:
        for value in node.outputs:
            walk.fact(value)


def _branches(walk: Walk, node: ir.Node) -> None:
    bodies = subgraphs(node)
    for body in bodies:
        walk.graph(body)
    for n, value in enumerate(node.outputs):
        facts = [walk.fact(body.outputs[n]) for body in bodies]
        for axis in sorted({axis for f in facts for axis in f.held}):
            for body in bodies:
                _hold(walk, node, body, n, axis)
        facts = [walk.fact(body.outputs[n]) for body in bodies]
        old, new = _common([f.old for f in facts]), _common([f.new for f in facts])
        walk.facts[value] = Fact(old, new, inner=facts[0].inner)


def _hold(walk: Walk, node: ir.Node, body: ir.Graph, n: int, axis: int) -> None:
    """A branch that gives the old size where the other gives the new one gives that too."""
    value = body.outputs[n]
    fact = walk.fact(value)
    was, now = fact.was, fact.now
    if was is None or now is None or axis >= len(was) or axis in fact.held or was[axis] != walk.probe.was:
        return
    if not walk.mending or value.producer() is None:
        raise walk.refusal(node, f"one branch gives '{value.name}' with the dimension, another without")
    name, at = walk.probe.places[0]
    source = next(v for v in walk.model.graph.inputs if v.name == name)
    end = ir.node("Identity", [value], name=walk.fresh(f"{value.name}_end"))
    body.append(end)
    end.outputs[0].name, end.outputs[0].type = walk.fresh(f"{value.name}_held"), value.type
    walk.give(end, 0, grown(walk, end, value, axis, (source, at)))
    walk.visit(end)
    body.outputs[n] = end.outputs[0]


def _common(kinds: list[TypeProto]) -> TypeProto:
    """What both branches give: dimensions in which they differ are open."""
    shapes = [dims_of(kind) for kind in kinds]
    first = shapes[0]
    if any(kind == kinds[0] for kind in kinds[1:]) or not kinds[0].HasField("tensor_type"):
        return kinds[0]
    element = kinds[0].tensor_type.elem_type
    if first is None or any(s is None or len(s) != len(first) for s in shapes):
        return tensor_type(element, None)
    columns = zip(*[s for s in shapes if s is not None], strict=True)
    return tensor_type(element, [c[0] if len(set(c)) == 1 else None for c in columns])


def _loop(walk: Walk, node: ir.Node) -> None:
    """States are known by what the body makes of them: one that begins without the dimension may get it in a turn."""
    body = subgraphs(node)[0]
    states = _States(walk, node, body)
    for _ in range(len(states.states) + 1):
        if not states.settle():
            break
    states.enter(body)
    walk.graph(body)
    states.leave()


class _States:
    """The states, and the slices, of a Loop or Scan."""

    def __init__(self, walk: Walk, node: ir.Node, body: ir.Graph) -> None:
        self.walk, self.node, self.body = walk, node, body
        self.scan = node.op_type == "Scan"
        slices = int(walk.attribute(node, "num_scan_inputs", 0)) if self.scan else 0
        count = len(node.inputs) - slices - (0 if self.scan else 2)
        first = 0 if self.scan else 2
        self.states = list(range(first, first + count))  # inputs of the node, and of the body
        self.slices = list(range(first + count, first + count + slices))
        self.open: set[int] = set()  # states whose shape is another in each turn

    def outer(self, index: int) -> ir.Value:
        value = self.node.inputs[index]
        assert value is not None
        return value

    def settle(self) -> bool:
        """Try one turn on a copy of the body; whether a state had to change."""
        trial = self.body.clone(allow_outer_scope_values=True)
        self.enter(trial)
        held = self.walk.mended.copy()
        try:
            self.walk.graph(trial)
            return sum(self._follow(trial, n) for n in range(len(self.states))) > 0
        finally:
            self.walk.mended = held | {n for n in self.walk.mended if n.graph is self.node.graph}
            _let_go(trial)

    def enter(self, body: ir.Graph) -> None:
        for index, value in enumerate(body.inputs):
            if index in self.states:
                fact = self.walk.fact(self.outer(index))
                self.walk.facts[value] = (
                    _opened(fact) if index in self.open else Fact(fact.old, fact.new, inner=fact.inner)
                )
            elif index in self.slices:
                self.walk.facts[value] = self._slice(index)

    def _slice(self, index: int) -> Fact:
        fact = self.walk.fact(self.outer(index))
        axes = self.walk.attribute(self.node, "scan_input_axes", [0] * len(self.slices))
        if fact.was is None or fact.now is None:
            return fact
        axis = axes[index - self.slices[0]] % len(fact.was)
        kinds = [tensor_type(fact.old.tensor_type.elem_type, d[:axis] + d[axis + 1 :]) for d in (fact.was, fact.now)]
        return Fact(kinds[0], kinds[1])

    def _follow(self, body: ir.Graph, n: int) -> bool:
        index = self.states[n]
        before = self.walk.facts[body.inputs[index]]
        after = self.walk.fact(body.outputs[n + (0 if self.scan else 1)])
        if before.was != after.was and index not in self.open:
            self.open.add(index)
            return True
        missing = [axis for axis in after.held if axis not in before.held]
        for axis in missing:
            self._grow(index, axis)
        return bool(missing)

    def _grow(self, index: int, axis: int) -> None:
        walk, value = self.walk, self.outer(index)
        if not walk.mending:
            raise walk.refusal(self.node, f"the state '{value.name}' begins without the dimension")
        name, at = walk.probe.places[0]
        source = next(v for v in walk.model.graph.inputs if v.name == name)
        walk.give(self.node, index, grown(walk, self.node, value, axis, (source, at)))

    def leave(self) -> None:
        ends = self.body.outputs[0 if self.scan else 1 :]
        for n, (value, end) in enumerate(zip(self.node.outputs, ends, strict=True)):
            fact = self.walk.fact(end)
            if n < len(self.states):
                start = self.walk.facts[self.body.inputs[self.states[n]]]
                if start.held != fact.held:
                    raise self.walk.refusal(self.node, f"the state '{end.name}' loses the dimension in a turn")
                self.walk.facts[value] = Fact(start.old, start.new, inner=fact.inner)
            else:
                self.walk.facts[value] = self._stacked(fact, n - len(self.states))

    def _stacked(self, fact: Fact, n: int) -> Fact:
        if fact.was is None or fact.now is None:
            return fact
        axes = self.walk.attribute(self.node, "scan_output_axes", None) or [0] * 99
        axis = axes[n] % (len(fact.was) + 1) if self.scan else 0
        turns = self._turns()
        element = fact.old.tensor_type.elem_type
        old = tensor_type(element, (*fact.was[:axis], turns[0], *fact.was[axis:]))
        return Fact(old, tensor_type(element, (*fact.now[:axis], turns[1], *fact.now[axis:])))

    def _turns(self) -> tuple[int | None, int | None]:
        if not self.scan:
            return None, None
        fact = self.walk.fact(self.outer(self.slices[0]))
        axis = self.walk.attribute(self.node, "scan_input_axes", [0] * len(self.slices))[0]
        return (fact.was or (None,))[axis], (fact.now or (None,))[axis]


def _opened(fact: Fact) -> Fact:
    element = fact.old.tensor_type.elem_type
    kind = tensor_type(element, None)
    return Fact(kind, kind)


def _let_go(body: ir.Graph) -> None:
    """A copy that is not kept must not seem to use the values outside it."""
    for node in ir.traversal.RecursiveGraphIterator(body):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
