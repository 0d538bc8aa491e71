"""Nodes that are to be found in a model or put into one: from ONNX text, from a model, or one operator.

The text is that of onnx's parser, a function without its head: ``(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }``. Names
are variables; ``<a> (x) => (y) { y = LeakyRelu<alpha: float = @a>(x) }`` has a variable for an attribute.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from torchport.errors import InputError, did_you_mean
from torchport.files import onnx_files
from torchport.irtools.schemas import _named_alike

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
    """Whether it is a model, or the path of one."""
    return isinstance(given, (ir.Model, os.PathLike)) or (isinstance(given, str) and given.endswith(".onnx"))


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


def of_model(given: ir.Model | str | os.PathLike[str]) -> Fragment:
    """A whole model as nodes: its inputs are the variables, its weights and functions come along and are shared."""
    model = given if isinstance(given, ir.Model) else onnx_files.load(given)
    graph = model.graph.clone()
    for value in [v for v in graph.inputs if v.is_initializer()]:
        graph.inputs.remove(value)
    title = f"the model '{graph.name}'" if isinstance(given, ir.Model) else f"the model {os.fspath(given)}"
    return Fragment(graph, title, tuple(f.clone() for f in model.functions.values()), dict(model.opset_imports), True)


def operator(name: str, inputs: int, outputs: int, attributes: Mapping[str, ir.Attr]) -> Fragment:
    """One node of an operator, ``Gelu`` or ``com.example::Foo``, with that many inputs and outputs."""
    domain, _, kind = name.rpartition("::")
    values = [ir.Value(name=f"i{n}") for n in range(inputs)]
    domain = "" if domain == "ai.onnx" else domain
    node = ir.Node(domain, kind, values, [_named_alike(k, a) for k, a in attributes.items()], num_outputs=outputs)
    for number, value in enumerate(node.outputs):
        value.name = f"o{number}"
    return Fragment(ir.Graph(values, node.outputs, nodes=[node], name=kind), f"'{name}'")
