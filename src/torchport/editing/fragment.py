"""Nodes that are to be found in a model or put into one: from ONNX text, from a model, or one operator.

The text is that of onnx's parser, a function without its head: ``(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }``. Names
are variables; ``<a> (x) => (y) { y = LeakyRelu<alpha: float = @a>(x) }`` has a variable for an attribute.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from torchport.errors import InputError, OpsetError, did_you_mean
from torchport.files.onnx_files import ModelLike, as_model
from torchport.irtools.schemas import with_name
from torchport.irtools.traversal import opset_of
from torchport.opset.convert import convert

EXAMPLE = "(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }"
_HEAD = '<domain: "torchport.text", opset_import: ["": 1]>'


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Nodes between some inputs and outputs.

    Attributes:
        graph: holds them. It is never changed: what goes into a model is a copy.
        title: how an error calls it.
        functions: local functions that its nodes call.
        opsets: what it was written for; nothing for text, which takes the opset of the model it goes into.
        named: whether its names are worth keeping: a model's are, the variables of a text are not.
    """

    graph: ir.Graph
    title: str
    functions: tuple[ir.Function, ...] = ()
    opsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    named: bool = False


def is_text(given: object) -> bool:
    """Whether a string is nodes in ONNX text, not a name."""
    return isinstance(given, str) and "=>" in given


def is_model(given: object) -> bool:
    """Check that it is a model, or the path of one."""
    return isinstance(given, (ir.Model, onnx.ModelProto, os.PathLike)) or (
        isinstance(given, str) and given.endswith(".onnx")
    )


def parse(text: str) -> Fragment:
    """The nodes that a text describes.

    Raises:
        InputError: it is not the syntax, or a name is used that nothing makes.

    Example:
        >>> parse("(x) => (y) { h = Sigmoid(x)  y = Mul(x, h) }").graph.num_nodes()
        2
    """
    own = text.strip()
    name = "" if re.match(r"[A-Za-z_]", own) else " nodes"
    head = "" if own.startswith("<") and "opset_import" in own.partition(">")[0] else f"{_HEAD}{name}\n"
    try:
        proto = onnx.parser.parse_function(head + re.sub(r"(?<=\w)::(?=\w)", ".", own))
    except onnx.parser.ParseError as error:
        raise _not_parsed(own, error, lines=head.count("\n")) from error
    _check_names(proto, own)
    return Fragment(ir.serde.deserialize_function(proto).graph, f"'{_short(own)}'")


def _not_parsed(text: str, error: Exception, *, lines: int) -> InputError:
    message = (
        str(error.args[0].decode() if isinstance(error.args[0], bytes) else error).replace("\\n", "\n").strip("b'\n")
    )
    place = re.search(r"line: (\d+) column: (\d+)", message)
    row, column = (max(int(place[1]) - lines, 1), int(place[2])) if place else (1, 1)
    line = (text.splitlines() or [""])[min(row, text.count("\n") + 1) - 1]
    hint = "; numbers are written c = Constant<value = float {2.0}>()" if re.search(r"[(,]\s*-?\d", text) else ""
    return InputError(
        f"these nodes cannot be read as ONNX text: {message.splitlines()[-1].strip()}",
        where=f"line {row}, column {column}: {line.strip()}",
        next_step=f"write them like {EXAMPLE}{hint}",
    )


def _check_names(proto: onnx.FunctionProto, text: str) -> None:
    known = {*proto.input}
    for node in proto.node:
        for name in node.input:
            if name and name not in known:
                raise _nothing_makes(name, known, text)
        for name in node.output:
            if name in known and name:
                raise InputError(f"'{name}' is made twice", where=text, next_step="give each value a name of its own")
            known.add(name)
    for name in proto.output:
        if name not in known:
            raise _nothing_makes(name, known, text)


def _nothing_makes(name: str, known: set[str], text: str) -> InputError:
    hint = did_you_mean(name, known, "name it in the brackets before =>, or make it by a node")
    return InputError(f"nothing makes '{name}' in these nodes", where=text, next_step=hint)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def of_model(given: ModelLike) -> Fragment:
    """A whole model as nodes: its inputs are the variables, its weights and functions come along and are shared."""
    model = as_model(given)
    graph = model.graph.clone()
    for value in [v for v in graph.inputs if v.is_initializer()]:
        graph.inputs.remove(value)
    title = f"the model {os.fspath(given)}" if isinstance(given, (str, os.PathLike)) else f"the model '{graph.name}'"
    return Fragment(graph, title, tuple(f.clone() for f in model.functions.values()), dict(model.opset_imports), True)


def operator(name: str, inputs: int, outputs: int, attributes: Mapping[str, ir.Attr]) -> Fragment:
    """One node of an operator, ``Gelu`` or ``com.example::Foo``, with that many inputs and outputs."""
    domain, _, kind = name.rpartition("::")
    values = [ir.Value(name=f"i{n}") for n in range(inputs)]
    domain = "" if domain == "ai.onnx" else domain
    node = ir.Node(domain, kind, values, [with_name(k, a) for k, a in attributes.items()], num_outputs=outputs)
    for number, value in enumerate(node.outputs):
        value.name = f"o{number}"
    return Fragment(ir.Graph(values, node.outputs, nodes=[node], name=kind), f"'{name}'")


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
