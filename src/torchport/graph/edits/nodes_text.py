"""Nodes that are to be found in a model or put into one: from ONNX text, from a model, or one operator.

The text is that of onnx's parser, a function without its head: ``(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }``. Names
are variables; ``<a> (x) => (y) { y = LeakyRelu<alpha: float = @a>(x) }`` has a variable for an attribute.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from torchport.errors import InputError
from torchport.graph import files
from torchport.graph.opset_rules.schemas import history
from torchport.graph.values import subgraphs

EXAMPLE = "(x, y) => (z) { t = Mul(x, y)  z = Relu(t) }"
_HEAD = '<domain: "torchport.text", opset_import: ["": 1]>'
_NUMBERS = {"float32": "FLOAT", "float64": "DOUBLE", "half": "FLOAT16"}


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
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "name it in the brackets before =>, or make it by a node"
    return InputError(f"nothing makes '{name}' in these nodes", where=text, next_step=hint)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def of_model(given: ir.Model | str | os.PathLike[str]) -> Fragment:
    """A whole model as nodes: its inputs are the variables, its weights and functions come along and are shared."""
    model = given if isinstance(given, ir.Model) else files.load(given)
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


def _named_alike(name: str, attribute: ir.Attr) -> ir.Attr:
    if attribute.is_ref():
        return ir.RefAttr(name, str(attribute.ref_attr_name), attribute.type)
    return ir.Attr(name, attribute.type, attribute.value)


def schema_of(name: str, opset: int | None) -> Any | None:
    """What onnx says of an operator at an opset; None for an operator of somebody else.

    Raises:
        InputError: ONNX has no such operator there, and no domain says that it is another's.
    """
    domain, _, kind = name.rpartition("::")
    if domain not in ("", "ai.onnx") or opset is None:
        return None
    versions = history().get(kind, {})
    found = max((v for v in versions if v <= opset), default=None)
    if found is not None and not versions[found].deprecated:
        return versions[found]
    if versions and found is None:
        raise InputError(
            f"the operator {kind} came in opset {min(versions)}, the model is of opset {opset}",
            next_step=f"convert the model first: --set-opset {min(versions)}",
        )
    close = difflib.get_close_matches(kind, sorted(history()), n=3, cutoff=0.5)
    own = f"an operator of your own needs a domain: com.example::{kind}"
    what = f"ONNX has no operator {kind}" + (f" any more in opset {opset}" if versions else "")
    raise InputError(what, next_step=f"did you mean {', '.join(close)}? {own}" if close else own)


def attributes_of(given: Mapping[str, Any], schema: Any | None) -> dict[str, ir.Attr | None]:
    """Attributes from plain values, as YAML has them, of the kinds the operator wants; None stays None."""
    found: dict[str, ir.Attr | None] = {}
    for name, value in given.items():
        known = None if schema is None else schema.attributes.get(name)
        if schema is not None and known is None:
            close = difflib.get_close_matches(name, sorted(schema.attributes), n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(close)}?" if close else f"it has {', '.join(schema.attributes) or 'none'}"
            raise InputError(f"the operator {schema.name} has no attribute '{name}'", next_step=hint)
        found[name] = None if value is None else _attribute(name, value, known)
    return found


def _attribute(name: str, value: Any, known: Any | None) -> ir.Attr:
    if isinstance(value, ir.Attr):
        return _named_alike(name, value)
    kind = None if known is None else ir.AttributeType(int(known.type.value))
    try:
        return ir.convenience.convert_attribute(name, _plain(value, kind), kind)
    except (TypeError, ValueError, KeyError) as error:
        wanted = f"a value of kind {kind.name}" if kind is not None else "a number, a text, a list of them, or a tensor"
        raise InputError(f"attribute '{name}' cannot be {value!r}", next_step=f"give it {wanted}") from error


def _plain(value: Any, kind: ir.AttributeType | None) -> Any:
    """The value as the attribute's kind has it: ``to: float16`` is a number, ``alpha: 1`` is a float."""
    if kind == ir.AttributeType.INT and isinstance(value, str):
        return int(ir.DataType[_NUMBERS.get(value.lower(), value.upper())])
    if kind == ir.AttributeType.INT:
        if int(value) != value:
            raise ValueError(value)
        return int(value)
    if kind == ir.AttributeType.FLOAT:
        return float(value)
    if kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS):
        number = int if kind == ir.AttributeType.INTS else float
        return [number(v) for v in (value if isinstance(value, Sequence) else [value])]
    if kind == ir.AttributeType.TENSOR or isinstance(value, np.ndarray):
        return tensor_of(value)
    return value


def tensor_of(value: Any, dtype: ir.DataType | None = None) -> ir.TensorProtocol:
    """A tensor of numbers, lists or an array; Python's floats are float32 unless a dtype is given."""
    if isinstance(value, ir.TensorProtocol):
        return value
    try:
        array = np.asarray(value)
        array = array if dtype is None else array.astype(dtype.numpy())
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{str(value)[:60]} is no tensor of numbers", next_step="give numbers, or lists of one length"
        ) from error
    if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        array = array.astype(np.float32)
    return ir.tensor(array)


def own_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The same data under another name. onnx-ir keeps the name in the tensor, which may be another model's too."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=tensor.base_dir,
        )
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=tensor.shape, name=name)  # type: ignore[arg-type]
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def rename(value: ir.Value, name: str) -> None:
    """Give a value another name, and its tensor, if any, one of its own."""
    if value.name == name:
        return
    if value.const_value is not None and value.producer() is None:
        value.const_value = own_tensor(value.const_value, name)
    ir.convenience.rename_values(value, name)


def graphs_in(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph, and those inside its nodes."""
    yield graph
    for node in graph:
        for inner in subgraphs(node):
            yield from graphs_in(inner)


def values_in(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value that a graph, or one inside it, defines."""
    for one in graphs_in(graph):
        yield from dict.fromkeys((*one.inputs, *one.initializers.values(), *(v for n in one for v in n.outputs)))
