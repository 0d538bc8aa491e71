"""Bring another model's nodes to this one's opset, and its functions along."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from torchport.errors import InputError, OpsetError
from torchport.graph.edits.nodes_text import Fragment
from torchport.irtools.traversal import opset_of
from torchport.opset.convert import convert


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
