"""Types and shapes of new nodes, and another model's nodes brought to this model's opset."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from torchport.editing.fragment import Fragment
from torchport.errors import InputError, OpsetError
from torchport.inspection.lint.operators import clean
from torchport.irtools.inference import InferenceError, infer_shapes
from torchport.irtools.names import where
from torchport.irtools.traversal import Match, Scope, opset_of, used_values
from torchport.irtools.types import agrees, described
from torchport.opset.convert import convert

_SMALL = 1024  # bytes of a constant worth showing to inference


def settle_types(nodes: Sequence[ir.Node], scope: Scope, model: ir.Model, title: str) -> None:
    """Give new nodes the types and shapes that follow from their inputs, or refuse what does not fit together."""
    if not nodes:
        return
    view = ir.GraphView([], [], nodes=nodes)
    for node in ir.traversal.RecursiveGraphIterator(view):
        for value in node.outputs:
            value.type = value.shape = None
    made = {v for n in nodes for v in n.outputs}
    outer = [v for v in dict.fromkeys(v for n in nodes for v in used_values(n)) if v not in made]
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
        return infer_shapes(proto, strict=strict, check_type=strict)
    except (InferenceError, onnx.checker.ValidationError) as error:
        if "instead is null" in str(error):  # behind an operator of one's own nobody knows the type
            return infer_shapes(proto)
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


def check_agrees(old: ir.Value, new: ir.Value, match: Match) -> None:
    """Raises `InputError` where the new value cannot be what the old one was."""
    if not agrees(old, new):
        raise InputError(
            f"'{old.name}' is {described(old)}, what would be put there gives {described(new)}",
            where=where(match.nodes[-1]),
            next_step="end the new nodes with a Cast or Reshape to the old type and shape",
        )


# Bring another model's nodes to this one's opset, and its functions along.


def adopted(model: ir.Model, fragment: Fragment) -> Fragment:
    """A model's nodes in this model's opset, their functions taken in, under other names where those are taken."""
    present = opset_of(model.graph)
    theirs = fragment.opsets.get("", fragment.opsets.get("ai.onnx"))
    if present is not None and theirs not in (None, present):
        fragment = _converted(fragment, present)
    for domain, version in fragment.opsets.items():
        own = model.opset_imports.get(domain, version)
        if domain not in ("", "ai.onnx") and own != version:
            raise InputError(
                f"{fragment.title} has version {version} of '{domain}', this model has version {own}",
                next_step="bring both to one version of these operators",
            )
    if present is None and theirs is not None:
        model.opset_imports[""] = theirs
    for domain, version in fragment.opsets.items():
        if domain not in ("", "ai.onnx"):
            model.opset_imports.setdefault(domain, version)
    take_functions(model, fragment.graph, fragment.functions)
    return fragment


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
