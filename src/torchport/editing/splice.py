"""Put new nodes into a model: named, typed, and checked before they go in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from torchport.editing.fragment import Fragment
from torchport.editing.retype import check_agrees, settle_types
from torchport.editing.selection import forget_unused_domains
from torchport.errors import InputError, did_you_mean
from torchport.irtools import names, schemas
from torchport.irtools.inference import infer_missing
from torchport.irtools.names import FreshNames, rename, where
from torchport.irtools.schemas import dtype_at, newest, type_variable
from torchport.irtools.traversal import Match, Scope, all_values
from torchport.irtools.types import agrees, described
from torchport.opset.convert import ir_version_for

_Key = tuple[int, str, int]  # a weight: of which fragment, its name there, and for which scope


class Grafting:
    """Puts nodes into a model: names them, types them, and sees that they fit before they go in."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.names = FreshNames(model)
        self._shared: dict[_Key, ir.Value] = {}

    # --- what goes in ---

    def values(
        self,
        given: Sequence[Any],
        variables: Mapping[str, ir.Value | None],
        at: ir.Node | None,
        scope: Scope,
        schema: Any,
    ) -> list[ir.Value | None]:
        """Return the inputs that a user gives: variables, tensors, their names, or numbers, which become constants."""
        names.check_owned(self.model, *(one for one in given if isinstance(one, ir.Value)))
        found: list[ir.Value | None] = []
        kinds: dict[str, ir.DataType] = {}
        for index, one in enumerate(given):
            known = variables[one] if isinstance(one, str) and one in variables else one
            value = self._tensor(known, variables, scope, at) if isinstance(known, str) else known
            found.append(value if isinstance(value, ir.Value) else None)
            if isinstance(value, ir.Value) and value.dtype is not None:
                kinds.setdefault(type_variable(schema, index), value.dtype)
        for index, one in enumerate(given):
            if one is not None and not isinstance(one, (str, ir.Value)):
                found[index] = self.constant(one, dtype_at(schema, index, kinds))
        return found

    def constant(self, given: Any, dtype: ir.DataType | None) -> ir.Value:
        """Numbers as a weight that stands in no graph yet."""
        tensor = schemas.tensor_of(given, dtype)
        name = self.names.fresh("constant")
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
        value.const_value = names.own_tensor(tensor, name)
        return value

    def _tensor(self, name: str, variables: Mapping[str, Any], scope: Scope, node: ir.Node | None) -> ir.Value:
        body = scope.graph if isinstance(scope, ir.Function) else scope
        graphs = [body] if node is None or node.graph is body or node.graph is None else [node.graph, body]
        for graph in graphs:
            for value in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)):
                if value.name == name:
                    return value
        known = [*variables, *(str(v.name) for v in all_values(body))]
        hint = did_you_mean(name, known, "`torchport inspect` lists what there is")
        raise InputError(f"there is no tensor '{name}' to take as an input", next_step=hint)

    # --- new nodes ---

    def copy(
        self,
        fragment: Fragment,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr | None],
        base: str,
        scope: Scope,
    ) -> Graft:
        """The fragment's nodes anew, connected to `inputs`, checked and typed."""
        _check_stated(fragment, inputs)
        graph = fragment.graph.clone(allow_outer_scope_values=True)  # a branch may use what is around it
        bind(graph, attributes)
        keys = {v: (id(fragment), str(v.name), id(scope)) for v in graph.initializers.values()}
        self._rename(graph, "" if fragment.named else f"{base}_", keys)
        stated = {v: (v.type, v.shape) for n in graph.all_nodes() for v in n.outputs}
        graft = detached(graph, inputs)
        for value in list(graft.initializers):
            self._once(graft, value, keys[value])
        for one in graft.nodes:
            one.name = self.names.fresh(f"{base}_{one.op_type}" if not fragment.named else one.name or one.op_type)
        self._check_and_type(graft, scope, fragment.title)
        for value, (kind, shape) in stated.items():
            if value.type is None:
                value.type, value.shape = kind, shape
        return graft

    def named(self, graft: Graft, base: str, scope: Scope) -> Graft:
        """Nodes that a function made, named, checked and typed."""
        for node in graft.nodes:
            node.name = self.names.fresh(f"{base}_{node.op_type}")
            for value in node.outputs:
                value.name = self.names.fresh(f"{base}_{value.name or node.op_type.lower()}")
        for value in graft.initializers:
            rename(value, self.names.fresh(f"{base}_{value.name or 'weight'}"))
        self._check_and_type(graft, scope, "what the function made")
        return graft

    def _rename(self, graph: ir.Graph, before: str, keys: Mapping[ir.Value, _Key]) -> None:
        for value in all_values(graph):
            if value.name and keys.get(value) not in self._shared:  # an output left out has no name
                rename(value, self.names.fresh(f"{before}{value.name}"))

    def _once(self, graft: Graft, value: ir.Value, key: _Key) -> None:
        """A weight that several places bring is one."""
        known = self._shared.setdefault(key, value)
        if known is not value:
            value.replace_all_uses_with(known)
            graft.initializers[:] = [known if v is value else v for v in graft.initializers]
            graft.outputs[:] = [known if v is value else v for v in graft.outputs]

    def _check_and_type(self, graft: Graft, scope: Scope, title: str) -> None:
        for node in graft.nodes:
            self._import(node, scope)
        settle_types(graft.nodes, scope, self.model, title)

    def _import(self, node: ir.Node, scope: Scope) -> None:
        inner = ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=[node]))
        for domain in {n.domain for n in inner} - {"", "ai.onnx"}:
            scope.opset_imports.setdefault(domain, newest(domain))
            self.model.opset_imports.setdefault(domain, scope.opset_imports[domain])

    # --- into the graph ---

    def put(self, match: Match, graft: Graft) -> dict[ir.Value, ir.Value]:
        """Put new nodes in the place of old ones; which value now stands for which."""
        pairs = paired(match, graft)
        last = match.nodes[-1]
        graph = last.graph
        assert graph is not None
        for old, new in pairs:
            check_agrees(old, new, match)
        self.bring(graft, match.scope)
        for node in graft.nodes:
            node.metadata_props.update({k: v for k, v in last.metadata_props.items() if k not in node.metadata_props})
            node.doc_string = node.doc_string or last.doc_string
        graph.insert_before(last, graft.nodes)
        moved = {old: take_place(graph, last, old, new, set(graft.nodes), self.names) for old, new in pairs}
        before = [v for n in match.nodes for v in n.inputs if v is not None]
        graph.remove(match.nodes, safe=True)
        if len(graft.nodes) == 1 and last.name:
            graft.nodes[0].name = last.name
        drop_unread(before)
        if len(match.nodes) > 1 and len(match.outputs) > 1:
            graph.sort()
        return moved

    def bring(self, graft: Graft, scope: Scope) -> None:
        """Weights go to the main graph, where branches see them; a function has only constants."""
        for value in dict.fromkeys([*graft.initializers, *loose(graft)]):
            if isinstance(scope, ir.Graph):
                if not value.is_initializer():
                    self.model.graph.register_initializer(value)
                continue
            assert value.const_value is not None
            node = ir.node(
                "Constant", [], attributes={"value": value.const_value}, name=self.names.fresh(f"{value.name}_constant")
            )
            node.outputs[0].name = self.names.fresh(str(value.name))
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            value.replace_all_uses_with(node.outputs[0])
            graft.nodes.insert(0, node)
            graft.outputs[:] = [node.outputs[0] if o is value else o for o in graft.outputs]
            self._shared = {t: v for t, v in self._shared.items() if v is not value}

    def finish(self) -> None:
        """What follows for the whole model."""
        forget_unused_domains(self.model)
        infer_missing(self.model)
        if self.model.functions:
            self.model.ir_version = max(self.model.ir_version, ir_version_for(self.model))


def _check_stated(fragment: Fragment, inputs: Sequence[ir.Value | None]) -> None:
    for formal, actual in zip(fragment.graph.inputs, inputs, strict=True):
        if actual is not None and not agrees(formal, actual):
            raise InputError(
                f"{fragment.title} takes '{formal.name}' as {described(formal)}, "
                f"'{actual.name}' is {described(actual)}",
                next_step="put a Cast or Reshape between, or change the model's input",
            )


# New nodes that stand in no graph yet, and how their values take the place of others.


@dataclasses.dataclass(frozen=True)
class Graft:
    """New nodes that stand in no graph yet, with what comes out of them and the weights they bring."""

    nodes: list[ir.Node]
    outputs: list[ir.Value]
    initializers: list[ir.Value]


def is_used(value: ir.Value) -> bool:
    """Whether a node, or whoever runs the graph, gets the value."""
    return bool(value.uses()) or value.is_graph_output()


def loose(graft: Graft) -> list[ir.Value]:
    """Constants that were made for an input of a new node, and stand nowhere yet."""
    used = [v for n in graft.nodes for v in n.inputs if v is not None]
    return [v for v in used if v.producer() is None and v.graph is None and v.const_value is not None]


def bind(graph: ir.Graph, attributes: Mapping[str, ir.Attr | None]) -> None:
    """Put attributes in the place of the variables for them; one that was left out stays left out."""
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for name, attribute in list(node.attributes.items()):
            if not attribute.is_ref():
                continue
            bound = attributes.get(str(attribute.ref_attr_name))
            if bound is None:
                del node.attributes[name]
            elif bound.is_ref():
                node.attributes[name] = ir.RefAttr(name, str(bound.ref_attr_name), bound.type)
            else:
                node.attributes[name] = ir.Attr(name, bound.type, bound.value)


def detached(graph: ir.Graph, inputs: Sequence[ir.Value | None]) -> Graft:
    """Take a graph apart: its nodes, connected to other inputs, and its weights."""
    nodes, outputs, formals = list(graph), list(graph.outputs), list(graph.inputs)
    graph.outputs.clear()
    graph.remove(nodes)
    initializers = [graph.initializers.pop(name) for name in list(graph.initializers)]
    graph.inputs.clear()
    for formal, actual in zip(formals, inputs, strict=True):
        if actual is not None:
            formal.replace_all_uses_with(actual)
            outputs = [actual if o is formal else o for o in outputs]
            continue
        for node, index in list(formal.uses()):
            node.replace_input_with(index, None)
    return Graft(nodes, outputs, initializers)


def paired(match: Match, graft: Graft) -> list[tuple[ir.Value, ir.Value]]:
    """Each output that goes, with the one that comes; as many as are used must come."""
    old, new = list(match.outputs), graft.outputs
    missing = [v for v in old[len(new) :] if is_used(v)]
    surplus = len(new) > len(old) and len(match.nodes) > 1
    if missing or surplus:
        raise InputError(
            f"{len(old)} outputs are replaced, and {len(new)} are there for them",
            where=f"'{missing[0].name}' is used" if missing else where(match.nodes[-1]),
            next_step="give as many outputs as there are",
        )
    return list(zip(old, new, strict=False))


def take_place(
    graph: ir.Graph, at: ir.Node, old: ir.Value, new: ir.Value, made: set[ir.Node], names: FreshNames
) -> ir.Value:
    """Let `new` be what `old` was to everybody; its name too, if it is of the new nodes."""
    own = new.producer() in made and new.name is not None and not new.is_graph_output()
    if not own and old.is_graph_output():
        node = ir.node("Identity", [new], name=names.fresh(f"{old.name}_identity"))
        node.metadata_props.update(at.metadata_props)
        graph.insert_before(at, node)
        new, own = node.outputs[0], True
    if own:
        name, old.name = old.name, None
        new.name = name or ("" if not new.uses() else new.name)  # an output that was left out stays left out
        new.type = old.type if old.type is not None else new.type
        new.shape = _merged(old.shape, new.shape)
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        made.discard(new.producer())  # a second output of the same value needs its own name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return new


def _merged(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """What is known of either; a name that was stated is not lost."""
    if old is None or new is None:
        return old if old is not None else new
    return ir.Shape(
        [b if isinstance(a, ir.SymbolicDim) and a.value is None else a for a, b in zip(old, new, strict=True)]
    )


def drop_unread(values: Sequence[ir.Value]) -> None:
    """Take out constants and weights that the edit left nobody to read."""
    for value in dict.fromkeys(values):
        if is_used(value) or value.is_graph_input():
            continue
        producer, graph = value.producer(), value.graph
        if producer is not None and producer.op_type == "Constant" and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
        elif producer is None and value.is_initializer() and graph is not None:
            graph.initializers.pop(str(value.name))
