"""Put other nodes in the place of some: an operator, nodes in ONNX text or Python, or a whole model."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from torchport.errors import InputError, OpsetError
from torchport.graph.describing import type_text
from torchport.graph.edits import nodes_text
from torchport.graph.edits.choosing import forget_unused_domains, where
from torchport.graph.edits.nodes_text import Fragment, rename, values_in
from torchport.graph.edits.patterns import Match, Scope, find
from torchport.graph.lint_rules.nodes import clean
from torchport.graph.opset import convert, ir_version_for
from torchport.graph.opset_rules.inference import infer_missing
from torchport.graph.opset_rules.schemas import allowed_types, formal_at
from torchport.graph.opset_rules.steps import Names
from torchport.graph.values import used_by

_Key = tuple[int, str, int]  # a weight: of which fragment, its name there, and for which scope
By = str | os.PathLike[str] | ir.Model | Callable[..., Any]
_SMALL = 1024  # bytes of a constant worth showing to inference


def replace(
    model: ir.Model,
    what: str | Callable[..., Any],
    by: By,
    *,
    attributes: Mapping[str, Any] | None = None,
    inputs: Sequence[Any] | None = None,
) -> int:
    """Replace nodes, in the graph, its branches and its functions.

    The outputs keep their names and types; nodes keep where they came from. A place whose inner values are used
    elsewhere is passed over, and if all are like that, it is an error.

    Args:
        model: changed in place, or not at all.
        what: a node's name, an operator, a pattern of names (``block*``); or nodes in ONNX text, whose names are
            variables: ``(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }``; or a function in the style of onnxscript's
            rewriter.
        by: an operator (``Gelu``, ``com.example::Foo``); nodes in text, with the same variables, or those of the node
            in order; a function, given a builder and what the pattern found, or the node's inputs and the attributes
            it names; a model or an ``.onnx`` file.
        attributes: of the operator, added to those of the old node that it also has; None takes one off.
        inputs: of the operator, in place of all: variables of the pattern, ``#1`` for the node's second input, names of
            tensors, numbers and lists.

    Returns:
        How many places were replaced.

    Raises:
        InputError: nothing is found, what is put in does not fit, or its outputs have other types or shapes.
        OpsetError: a model that is put in cannot be expressed in this one's opset.

    Example:
        >>> tp.graph.replace(model, "Relu", "LeakyRelu", attributes={"alpha": 0.1})
        >>> tp.graph.replace(model, "(x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }", "com.example::Swish")
    """
    return rehearsed(model, lambda one: _replace(one, what, by, dict(attributes or {}), inputs))


def rehearsed(model: ir.Model, change: Callable[[ir.Model], int]) -> int:
    """Make a change on a copy first, weights shared, so that one which is refused leaves the model as it was."""
    change(model.clone())
    return change(model)


def _replace(model: ir.Model, what: Any, by: By, attributes: dict[str, Any], inputs: Sequence[Any] | None) -> int:
    infer_missing(model)
    found = find(model, what)
    graft = Grafting(model)
    moved: dict[ir.Value, ir.Value] = {}
    maker = _Maker(graft, by, attributes, inputs)
    count = 0
    for match in found:
        now = current(match, moved)
        new = maker.make(now)
        if new is not None:
            moved.update(graft.put(now, new))
            count += 1
    graft.finish()
    if not count:
        raise InputError(
            "the function replaced none of the places it was given", next_step="let it return the new outputs"
        )
    return count


def current(match: Match, moved: Mapping[ir.Value, ir.Value]) -> Match:
    """The match after others were replaced, whose outputs may go into it."""

    def now(value: Any) -> Any:
        while isinstance(value, ir.Value) and value in moved:
            value = moved[value]
        return value

    inputs = {name: now(value) for name, value in match.inputs.items()}
    bound = None if match.bound is None else {name: now(value) for name, value in match.bound.items()}
    return dataclasses.replace(match, inputs=inputs, bound=bound)


@dataclasses.dataclass(frozen=True)
class Graft:
    """New nodes that stand in no graph yet, with what comes out of them and the weights they bring."""

    nodes: list[ir.Node]
    outputs: list[ir.Value]
    initializers: list[ir.Value]


class _Maker:
    """Makes, for each place, what is to be put there."""

    def __init__(self, graft: Grafting, by: By, attributes: dict[str, Any], inputs: Sequence[Any] | None) -> None:
        self._graft = graft
        self._by = by
        self._attributes = attributes
        self._inputs = inputs
        self._fragment: Fragment | None = None
        if nodes_text.is_text(by):
            self._fragment = nodes_text.parse(str(by))
        elif nodes_text.is_model(by):
            self._fragment = graft.adopted(nodes_text.of_model(by))  # type: ignore[arg-type]
        if (attributes or inputs is not None) and (self._fragment is not None or callable(by)):
            raise InputError("attributes and inputs are for an operator's name", next_step="write them into the nodes")

    def make(self, match: Match) -> Graft | None:
        if callable(self._by):
            return self._by_function(match)
        if self._fragment is None:
            return self._operator(match)
        values = _arguments(self._fragment, match)
        return self._graft.copy(self._fragment, values, match.attributes, _base(match), match.scope)

    def _by_function(self, match: Match) -> Graft | None:
        from onnxscript import TapeBuilder

        tape = TapeBuilder()
        assert callable(self._by)
        given = match.bound if match.bound is not None else match.inputs
        own = match.bound is None and all(name.startswith("#") for name in given)
        wanted = {k: a for k, a in match.attributes.items() if own and k in inspect.signature(self._by).parameters}
        made = self._by(tape, *given.values(), **wanted) if own else self._by(tape, **given)
        if made is None or made is False:
            return None
        outputs = list(made) if isinstance(made, (list, tuple)) else [made]
        return self._graft.named(Graft(list(tape.nodes), outputs, list(tape.initializers)), _base(match), match.scope)

    def _operator(self, match: Match) -> Graft:
        name = str(self._by)
        schema = nodes_text.schema_of(name, _opset(match.scope))
        values = self._values(match, schema)
        kept = {
            k: a for k, a in match.attributes.items() if a is not None and (schema is None or k in schema.attributes)
        }
        given = {**kept, **nodes_text.attributes_of(self._attributes, schema)}
        outputs = list(match.outputs)
        while len(outputs) > 1 and not _is_used(outputs[-1]):
            outputs.pop()
        whole = {k: a for k, a in given.items() if a is not None}
        refs = {str(a.ref_attr_name): a for a in whole.values() if a.is_ref()}
        fragment = nodes_text.operator(name, len(values), max(len(outputs), schema.min_output if schema else 1), whole)
        return self._graft.copy(fragment, values, refs, _base(match), match.scope)

    def _values(self, match: Match, schema: Any) -> list[ir.Value | None]:
        if self._inputs is None:
            return list(match.inputs.values())
        return self._graft.values(self._inputs, match.inputs, match.nodes[0], match.scope, schema)


def _arguments(fragment: Fragment, match: Match) -> list[ir.Value | None]:
    """What the fragment's inputs are: by name where it has the pattern's variables, else in order."""
    names = [str(v.name) for v in fragment.graph.inputs]
    if all(name in match.inputs for name in names):
        return [match.inputs[name] for name in names]
    ordered = list(match.inputs.values())
    while len(ordered) > len(names) and ordered[-1] is None:
        ordered.pop()
    if len(ordered) == len(names) and (fragment.named or any(n.startswith("#") for n in match.inputs)):
        return ordered
    unknown = [name for name in names if name not in match.inputs]
    there = (
        f"there are {', '.join(match.inputs)}"
        if not any(n.startswith("#") for n in match.inputs)
        else (f"{where(match.nodes[0])} has {len(ordered)} inputs, {fragment.title} takes {len(names)}")
    )
    raise InputError(f"{fragment.title} takes '{unknown[0]}', which is not in what it replaces", next_step=there)


def _base(match: Match) -> str:
    node = match.nodes[-1]
    return str(node.name or next((v.name for v in match.outputs if v.name), node.op_type))


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _opset(scope: Scope) -> int | None:
    return scope.opset_imports.get("", scope.opset_imports.get("ai.onnx"))


class Grafting:
    """Puts nodes into a model: names them, types them, and sees that they fit before they go in."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.names = Names(model)
        self._shared: dict[_Key, ir.Value] = {}

    # --- what comes along ---

    def adopted(self, fragment: Fragment) -> Fragment:
        """A model's nodes in this model's opset, their functions taken in, under other names where those are taken."""
        present = _opset(self.model.graph)
        theirs = fragment.opsets.get("", fragment.opsets.get("ai.onnx"))
        if present is not None and theirs not in (None, present):
            fragment = _converted(fragment, present)
        for domain, version in fragment.opsets.items():
            own = self.model.opset_imports.get(domain, version)
            if domain not in ("", "ai.onnx") and own != version:
                raise InputError(
                    f"{fragment.title} has version {version} of '{domain}', this model has version {own}",
                    next_step="bring both to one version of these operators",
                )
        if present is None and theirs is not None:
            self.model.opset_imports[""] = theirs
        for domain, version in fragment.opsets.items():
            if domain not in ("", "ai.onnx"):
                self.model.opset_imports.setdefault(domain, version)
        take_functions(self.model, fragment.graph, fragment.functions)
        return fragment

    def values(
        self,
        given: Sequence[Any],
        variables: Mapping[str, ir.Value | None],
        at: ir.Node | None,
        scope: Scope,
        schema: Any,
    ) -> list[ir.Value | None]:
        """What a user means by inputs: variables, names of tensors, or numbers, which become constants."""
        found: list[ir.Value | None] = []
        kinds: dict[str, ir.DataType] = {}
        for index, one in enumerate(given):
            known = variables[one] if isinstance(one, str) and one in variables else one
            value = self._tensor(known, variables, scope, at) if isinstance(known, str) else known
            found.append(value if isinstance(value, ir.Value) else None)
            if isinstance(value, ir.Value) and value.dtype is not None:
                kinds.setdefault(_formal(schema, index), value.dtype)
        for index, one in enumerate(given):
            if one is not None and not isinstance(one, (str, ir.Value)):
                found[index] = self.constant(one, _kind(schema, index, kinds))
        return found

    def constant(self, given: Any, dtype: ir.DataType | None) -> ir.Value:
        """Numbers as a weight that stands in no graph yet."""
        tensor = nodes_text.tensor_of(given, dtype)
        name = self.names.fresh("constant")
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
        value.const_value = nodes_text.own_tensor(tensor, name)
        return value

    def _tensor(self, name: str, variables: Mapping[str, Any], scope: Scope, node: ir.Node | None) -> ir.Value:
        body = scope.graph if isinstance(scope, ir.Function) else scope
        graphs = [body] if node is None or node.graph is body or node.graph is None else [node.graph, body]
        for graph in graphs:
            for value in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)):
                if value.name == name:
                    return value
        known = [*variables, *(str(v.name) for v in values_in(body))]
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        raise InputError(
            f"there is no tensor '{name}' to take as an input",
            next_step=f"did you mean {', '.join(close)}?" if close else "`torchport inspect` lists what there is",
        )

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
        _bind(graph, attributes)
        keys = {v: (id(fragment), str(v.name), id(scope)) for v in graph.initializers.values()}
        self._rename(graph, "" if fragment.named else f"{base}_", keys)
        stated = {v: (v.type, v.shape) for n in graph.all_nodes() for v in n.outputs}
        graft = _detached(graph, inputs)
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
        for value in values_in(graph):
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
        pairs = _paired(match, graft)
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
        moved = {old: _take_place(graph, last, old, new, set(graft.nodes), self.names) for old, new in pairs}
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
        for value in dict.fromkeys([*graft.initializers, *_loose(graft)]):
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


def _formal(schema: Any, index: int) -> str:
    """The type variable of an input: inputs of one are of one type; those of an unknown operator are taken to be."""
    if schema is None or not schema.inputs:
        return "T"
    return str(formal_at(schema.inputs, index).type_str)


def _kind(schema: Any, index: int, kinds: Mapping[str, ir.DataType]) -> ir.DataType | None:
    """The dtype a number should have at an input, where that is certain."""
    formal = _formal(schema, index)
    if formal in kinds:
        return kinds[formal]
    allowed = [] if schema is None else sorted(allowed_types(schema, formal_at(schema.inputs, index)))
    names = {"float": "FLOAT", "double": "DOUBLE"}
    one = allowed[0].removeprefix("tensor(").removesuffix(")") if len(allowed) == 1 else ""
    return ir.DataType[names.get(one, one.upper())] if one else None


def _loose(graft: Graft) -> list[ir.Value]:
    """Constants that were made for an input of a new node, and stand nowhere yet."""
    used = [v for n in graft.nodes for v in n.inputs if v is not None]
    return [v for v in used if v.producer() is None and v.graph is None and v.const_value is not None]


def _converted(fragment: Fragment, opset: int) -> Fragment:
    given = ir.Model(fragment.graph.clone(), ir_version=10, functions=[f.clone() for f in fragment.functions])
    given.graph.opset_imports.update(fragment.opsets)
    try:
        model = convert(given, opset)
    except OpsetError as error:
        what = f"{fragment.title} cannot be put into a model of opset {opset}: {error.what}"
        raise OpsetError(
            what,
            where=error.where,
            next_step=f"convert the model it goes into: --set-opset {fragment.opsets.get('', opset)}",
            blockers=error.blockers,
            nearest=error.nearest,
        ) from error
    return dataclasses.replace(
        fragment, graph=model.graph, functions=tuple(model.functions.values()), opsets=dict(model.opset_imports)
    )


def take_functions(model: ir.Model, graph: ir.Graph, functions: Sequence[ir.Function]) -> None:
    """Take in the functions that `graph` calls; one of the same name and another body gets a new name."""
    new: dict[ir.OperatorIdentifier, str] = {}
    for function in functions:
        own = model.functions.get(function.identifier())
        if own is not None and not same_function(own, function):
            new[function.identifier()] = _free_name(model, function, functions)
    for body in (graph, *(f.graph for f in functions)):
        for node in ir.traversal.RecursiveGraphIterator(body):
            node.op_type = new.get(node.op_identifier(), node.op_type)
    for function in functions:
        name = new.get(function.identifier())
        if name is not None:
            function.name = name
        model.functions.setdefault(function.identifier(), function)


def _free_name(model: ir.Model, function: ir.Function, others: Sequence[ir.Function]) -> str:
    taken = {(f.domain, f.name) for f in (*model.functions.values(), *others)}
    number = 2
    while (function.domain, f"{function.name}_{number}") in taken:
        number += 1
    return f"{function.name}_{number}"


def same_function(one: ir.Function, other: ir.Function) -> bool:
    """Whether two functions are the same to the last byte."""
    return bool(
        ir.serde.serialize_function(one).SerializeToString(deterministic=True)
        == ir.serde.serialize_function(other).SerializeToString(deterministic=True)
    )


def newest(domain: str) -> int:
    """The version to import of a domain: onnx's newest where it knows the domain, else 1."""
    known = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    return max(known, default=1)


def _check_stated(fragment: Fragment, inputs: Sequence[ir.Value | None]) -> None:
    for formal, actual in zip(fragment.graph.inputs, inputs, strict=True):
        if actual is not None and not agrees(formal, actual):
            raise InputError(
                f"{fragment.title} takes '{formal.name}' as {described(formal)}, "
                f"'{actual.name}' is {described(actual)}",
                next_step="put a Cast or Reshape between, or change the model's input",
            )


def _bind(graph: ir.Graph, attributes: Mapping[str, ir.Attr | None]) -> None:
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


def _detached(graph: ir.Graph, inputs: Sequence[ir.Value | None]) -> Graft:
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


# --- types ------------------------------------------------------------------------------------------------------------


def settle_types(nodes: Sequence[ir.Node], scope: Scope, model: ir.Model, title: str) -> None:
    """Give new nodes the types and shapes that follow from their inputs, or refuse what does not fit together."""
    if not nodes:
        return
    view = ir.GraphView([], [], nodes=nodes)
    for node in ir.traversal.RecursiveGraphIterator(view):
        for value in node.outputs:
            value.type = value.shape = None
    made = {v for n in nodes for v in n.outputs}
    outer = [v for v in dict.fromkeys(v for n in nodes for v in used_by(n)) if v not in made]
    proto = _message(nodes, outer, scope, model)
    inferred = ir.from_proto(_inferred(proto, title, strict=all(v.type is not None for v in outer)))
    for node, typed in zip(
        ir.traversal.RecursiveGraphIterator(view), ir.traversal.RecursiveGraphIterator(inferred.graph), strict=True
    ):
        for value, other in zip(node.outputs, typed.outputs, strict=True):
            value.type, value.shape = other.type, _nameable(other.shape, outer)


def _nameable(shape: ir.Shape | None, outer: Sequence[ir.Value]) -> ir.Shape | None:
    """A shape without the names onnx makes up for what it does not know: it makes up the same elsewhere."""
    if shape is None or not any(isinstance(d, ir.SymbolicDim) and str(d.value).startswith("unk__") for d in shape):
        return shape
    known = {d.value for v in outer for d in v.shape or () if isinstance(d, ir.SymbolicDim)}
    dims = [d if isinstance(d, int) else d.value for d in shape]
    return ir.Shape([None if str(d).startswith("unk__") and d not in known else d for d in dims])


def _inferred(proto: onnx.ModelProto, title: str, *, strict: bool) -> onnx.ModelProto:
    try:
        onnx.checker.check_model(_checkable(proto)) if strict else None
        return onnx.shape_inference.infer_shapes(proto, data_prop=True, strict_mode=strict, check_type=strict)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        if "instead is null" in str(error):  # behind an operator of one's own nobody knows the type
            return onnx.shape_inference.infer_shapes(proto, data_prop=True)
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise InputError(
            f"{title} does not fit: {clean(ValueError(lines[0] if lines else ''))}",
            next_step="compare its inputs, attributes and opset with the operator's definition",
        ) from error


def _checkable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The message as the checker wants it: an output must have a type, and nothing follows from it here."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    return copy


def _message(nodes: Sequence[ir.Node], outer: list[ir.Value], scope: Scope, model: ir.Model) -> onnx.ModelProto:
    """A model of the new nodes alone, for onnx to look at."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 8))
    proto.graph.name = "nodes"
    for domain, version in scope.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.node.extend(ir.serde.serialize_node(node) for node in nodes)
    called = {n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(ir.GraphView([], [], nodes=nodes))}
    if called.intersection(model.functions):
        proto.functions.extend(ir.serde.serialize_function(f) for f in model.functions.values())
    for value in outer:
        tensor = ir.convenience.get_const_tensor(value) if not value.is_graph_input() else None
        if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes <= _SMALL:
            shown = proto.graph.initializer.add()
            shown.CopyFrom(ir.serde.serialize_tensor(ir.tensor(tensor.numpy())))
            shown.name = str(value.name)
        else:
            proto.graph.input.add().CopyFrom(ir.serde.serialize_value(value))
    for value in (v for n in nodes for v in n.outputs if v.name):
        proto.graph.output.add(name=value.name)
    return proto


def agrees(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values can be of one type and shape, as far as both are known."""
    if one.type is not None and other.type is not None and one.type != other.type:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = list(zip(one.shape, other.shape, strict=False))
    return len(one.shape) == len(other.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs
    )


def described(value: ir.Value) -> str:
    """``float32[batch,3]``"""
    dims = [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    shape = "" if value.shape is None else f"[{','.join('?' if d is None else str(d) for d in dims)}]"
    return f"{type_text(value.type)}{shape}"


def check_agrees(old: ir.Value, new: ir.Value, match: Match) -> None:
    if not agrees(old, new):
        raise InputError(
            f"'{old.name}' is {described(old)}, what would be put there gives {described(new)}",
            where=where(match.nodes[-1]),
            next_step="end the new nodes with a Cast or Reshape to the old type and shape",
        )


def _paired(match: Match, graft: Graft) -> list[tuple[ir.Value, ir.Value]]:
    old, new = list(match.outputs), graft.outputs
    missing = [v for v in old[len(new) :] if _is_used(v)]
    surplus = len(new) > len(old) and len(match.nodes) > 1
    if missing or surplus:
        raise InputError(
            f"{len(old)} outputs are replaced, and {len(new)} are there for them",
            where=f"'{missing[0].name}' is used" if missing else where(match.nodes[-1]),
            next_step="give as many outputs as there are",
        )
    return list(zip(old, new, strict=False))


def _take_place(
    graph: ir.Graph, at: ir.Node, old: ir.Value, new: ir.Value, made: set[ir.Node], names: Names
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
        if _is_used(value) or value.is_graph_input():
            continue
        producer, graph = value.producer(), value.graph
        if producer is not None and producer.op_type == "Constant" and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
        elif producer is None and value.is_initializer() and graph is not None:
            graph.initializers.pop(str(value.name))
