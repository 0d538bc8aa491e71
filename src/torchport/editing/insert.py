"""Put a node behind a tensor, or before one input of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.editing.fragment import Fragment, adopted, is_model, is_text, of_model, operator, parse
from torchport.editing.retype import follow
from torchport.editing.selection import Tensor, chosen_nodes
from torchport.editing.splice import Graft, Grafting
from torchport.editing.transaction import Snapshot, errors_of, in_place, unproves
from torchport.errors import InputError
from torchport.files.onnx_files import ModelLike
from torchport.irtools import schemas
from torchport.irtools.inference import infer_missing
from torchport.irtools.names import check_owned, rename, unknown, where
from torchport.irtools.traversal import Scope, all_nodes, all_values, opset_of, own_values, scoped_nodes
from torchport.irtools.types import described


@in_place
@unproves
def insert(
    model: ir.Model,
    node: ModelLike,
    *,
    after: Tensor | ir.Node | None = None,
    before: str | ir.Node | None = None,
    attributes: Mapping[str, Any] | None = None,
    inputs: Sequence[Any] = (),
    name: str | None = None,
) -> int:
    """Put an operator, nodes or a model into a graph; types and shapes follow behind it.

    Args:
        model: changed in place, or not at all.
        node: an operator (``Cast``, ``my::Debug``), nodes in ONNX text (``(x) => (y) { y = Relu(x) }``), a model or a
            file.
        after: a tensor, or a node, whose first output is meant, or its name: all who used it get the new value. An
            output of the model keeps its name.
        before: a node or its name, ``conv1``, or one of its inputs, ``conv1:1``: only that node gets the new value.
        attributes: of the operator.
        inputs: further ones: tensors or their names, numbers, lists or arrays.
        name: of the new node.

    Returns:
        In how many places it was put.

    Raises:
        InputError: there is no such place, or what is put there does not fit.

    Example:
        >>> tp.graph.insert(model, "Clip", after="relu_out", inputs=[0.0, 6.0])
        >>> tp.graph.insert(model, "Cast", before="conv1:1", attributes={"to": "float32"})
    """
    if (after is None) == (before is None):
        raise InputError("a node is put after a tensor or before a node", next_step="give one of after and before")
    start = Snapshot(model)
    change = _Change(node, after, before, dict(attributes or {}), inputs, name)
    places, retyped = change.make(model)
    found = errors_of(model) if retyped else []
    if found:
        _refuse_new_errors(model, start, found)
        change.make(model)
    return places


@dataclasses.dataclass(frozen=True)
class _Spot:
    """A value to put something behind, and the one node that is to get it, if not all are."""

    value: ir.Value
    scope: Scope
    user: tuple[ir.Node, int] | None = None


@dataclasses.dataclass(frozen=True)
class _Change:
    """What is to be done, to a copy and then to the model itself."""

    node: ModelLike
    after: Tensor | ir.Node | None
    before: str | ir.Node | None
    attributes: dict[str, Any]
    inputs: Sequence[Any]
    name: str | None

    def make(self, model: ir.Model) -> tuple[int, bool]:
        """The number of places, and whether anything has another type or shape behind them."""
        infer_missing(model)
        grafting = Grafting(model)
        spots = _behind(model, self.after) if self.after is not None else _in_front(model, self.before or "")
        whole = self._fragment(grafting)
        stale: list[ir.Value] = []
        reshaped = False
        for spot in spots:
            graft = self._graft(grafting, spot, whole)
            new = _connect(grafting, spot, graft)
            if self.name is not None:
                graft.nodes[-1].name = grafting.names.fresh(self.name)
            if new.type is None and new.is_graph_output():  # an operator of one's own is taken to keep the type
                new.type, new.shape = spot.value.type, spot.value.shape
            if new.type is not None and (new.type, new.shape) != (spot.value.type, spot.value.shape):
                stale.append(new)
            reshaped |= new.shape != spot.value.shape
        grafting.finish()
        follow(model, stale, reshaped=reshaped)
        return len(spots), bool(stale)

    def _fragment(self, grafting: Grafting) -> Fragment | None:
        if is_text(self.node):
            fragment = parse(str(self.node))
        elif is_model(self.node):
            fragment = adopted(grafting.model, of_model(self.node))
        else:
            return None
        if self.attributes:
            raise InputError("attributes are for an operator's name", next_step="write them into the nodes")
        if len(fragment.graph.outputs) != 1 or len(fragment.graph.inputs) != 1 + len(self.inputs):
            has = f"{len(fragment.graph.inputs)} inputs and {len(fragment.graph.outputs)} outputs"
            raise InputError(
                f"{fragment.title} has {has}; one output and {1 + len(self.inputs)} inputs can be put here",
                next_step="name what goes into its further inputs with inputs=",
            )
        return fragment

    def _graft(self, grafting: Grafting, spot: _Spot, whole: Fragment | None) -> Graft:
        given = [spot.value, *self.inputs]
        at = spot.user[0] if spot.user is not None else spot.value.producer()
        base = str(spot.value.name)
        if whole is not None:
            values = grafting.values(given, {}, at, spot.scope, None)
            return grafting.copy(whole, values, {}, base, spot.scope)
        opset = opset_of(spot.scope)
        schema = schemas.schema_of(str(self.node), opset)
        values = grafting.values(given, {}, at, spot.scope, schema)
        found = {k: a for k, a in schemas.attributes_of(self.attributes, schema).items() if a is not None}
        outputs = max(1, schema.min_output) if schema is not None else 1
        fragment = operator(str(self.node), len(values), outputs, found)
        return grafting.copy(fragment, values, {}, base, spot.scope)


def _behind(model: ir.Model, name: Tensor | ir.Node) -> list[_Spot]:
    if not isinstance(name, str):
        check_owned(model, name)
        name = name.outputs[0] if isinstance(name, ir.Node) else name
    main = [v for v in own_values(model.graph) if v is name or v.name == name]
    if main:
        return [_Spot(main[0], model.graph)]
    scopes: list[Scope] = [model.graph, *model.functions.values()]
    bodies = [(s.graph if isinstance(s, ir.Function) else s, s) for s in scopes]
    inner = [_Spot(v, scope) for body, scope in bodies for v in all_values(body) if v is name or v.name == name]
    if inner or isinstance(name, ir.Value):
        return inner
    known = {str(v.name) for body, _ in bodies for v in all_values(body)} | {n.name or "" for n in all_nodes(model)}
    try:
        nodes = chosen_nodes(model, name)
    except InputError as error:
        raise unknown(name, "tensor or node", known - {""}) from error
    found = {id(n): scope for scope, n in scoped_nodes(model)}
    return [_Spot(n.outputs[0], found[id(n)]) for n in nodes]


def _in_front(model: ir.Model, given: str | ir.Node) -> list[_Spot]:
    stem, _, number = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    index = 0
    if stem and number.isdigit() and not any(n.name == given for n in all_nodes(model)):
        given, index = stem, int(number)
    scopes = {id(n): scope for scope, n in scoped_nodes(model)}
    spots = []
    for node in chosen_nodes(model, given):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            listed = ", ".join(f"{i}: '{v.name}'" for i, v in enumerate(node.inputs) if v is not None)
            raise InputError(
                f"{where(node)} has no input {index}", next_step=f"its inputs are {listed}" if listed else "it has none"
            )
        spots.append(_Spot(value, scopes[id(node)], (node, index)))
    return spots


def _connect(grafting: Grafting, spot: _Spot, graft: Graft) -> ir.Value:
    """Put the new nodes where they belong, and let those who are to get the new value have it."""
    made = set(graft.nodes)
    users = [spot.user] if spot.user is not None else [(n, i) for n, i in spot.value.uses() if not _inside(n, made)]
    grafting.bring(graft, spot.scope)
    new = graft.outputs[0]
    origin = spot.user[0] if spot.user is not None else spot.value.producer()
    for node in graft.nodes:
        if origin is not None:
            node.metadata_props.update({k: v for k, v in origin.metadata_props.items() if k.startswith("torchport.")})
    graph = _place(spot, graft)
    if spot.user is None and spot.value.is_graph_output():
        _become_output(grafting, spot.value, new)
    for node, index in users:
        node.replace_input_with(index, new)
    try:
        graph.sort()
    except ValueError as error:
        raise InputError(
            f"what goes into the new node besides '{spot.value.name}' is made from it, so each would need the other",
            next_step="put it before the one node that needs it: before=",
        ) from error
    return new


def _inside(node: ir.Node, made: set[ir.Node]) -> bool:
    every = ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=list(made)))
    return any(node is inner for inner in every)


def _place(spot: _Spot, graft: Graft) -> ir.Graph:
    producer = spot.value.producer()
    graph = spot.user[0].graph if spot.user is not None else spot.value.graph
    assert graph is not None
    if spot.user is not None:
        graph.insert_before(spot.user[0], graft.nodes)
    elif producer is not None:
        graph.insert_after(producer, graft.nodes)
    elif len(graph):
        graph.insert_before(graph[0], graft.nodes)
    else:
        graph.extend(graft.nodes)
    return graph


def _become_output(grafting: Grafting, old: ir.Value, new: ir.Value) -> None:
    """The output keeps its name: the new value takes it, and the one before it gets another."""
    graph, name = old.graph, str(old.name)
    assert graph is not None
    if old.is_graph_input():
        raise InputError(
            f"'{name}' is an input and an output at once, and both would need its name",
            next_step="rename the output first",
        )
    rename(old, grafting.names.fresh(f"{name}_before"))
    new.name = name
    graph.outputs[:] = [new if v is old else v for v in graph.outputs]


def _refuse_new_errors(model: ir.Model, start: Snapshot, found: list[str]) -> None:
    """Go back to the start; refuse a change of type that some node behind it does not take."""
    kept = ", ".join(f"'{v.name}' {described(v)}" for v in model.graph.outputs)
    start.restore()
    before = errors_of(model)
    new = [text for text in found if text not in before]
    if new:
        raise InputError(
            f"the model would not be valid any more: {new[0]}",
            where=f"outputs would be {kept}",
            next_step="put in something that gives the same type, or cast back behind it",
        )
