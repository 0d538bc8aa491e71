"""Rules about operators: nodes against their schemas, versions, tensor data, types and shapes."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

from torchport.errors import UnsafeFileError
from torchport.files.external_data import data_errors
from torchport.files.validation import newest_opsets
from torchport.inspection.lint.fault import Fault, Scope, named, nodes, source, title
from torchport.irtools.inference import infer_shapes
from torchport.irtools.serialization import proto_subgraphs

# Each node is what the operator's definition says: its count of inputs and outputs, its attributes.
#
# `onnx.checker` stops at the first fault of a model, so it is asked about each node by itself. Functions, whose nodes
# may refer to parameters, are shown to it whole.

_ADVICE = {
    "deprecated": "convert the model to an opset that still has it, or replace the node",
    "No Op registered": "see `torchport ops show` for the opsets that have it; an operator of your own needs a domain",
    "Unrecognized attribute": "remove the attribute, or raise the opset if it came later",
    "Required attribute": "give the attribute",
    "input size": "give the node the inputs its definition wants",
    "output size": "give the node the outputs its definition wants",
}
_MOST_INSIDE = 1024


def node_faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
    context = _context(proto.ir_version, proto.opset_import)
    for scope in scopes:
        if _in_function(scope):
            continue
        for node in scope.body.node:
            text = _complaint(node, context)
            if text:
                yield _fault(node, text)
    for function in proto.functions:
        text = _function_complaint(function, proto)
        if text:
            what = f"function '{function.domain}::{function.name}': {text}"
            yield Fault("error", "checker", what, _advice(text))


def clean(error: BaseException) -> str:
    """The first line of what onnx says, without its C++ and its tags."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return re.sub(r"^\[\w+\] |^\S+\.(?:cc|h):\d+: ?\w*: ?", "", text)[:300].rstrip(".")


def _complaint(node: NodeProto, context: Any) -> str:
    try:
        onnx.checker.check_node(_alone(node), context)
    except Exception as error:  # noqa: BLE001 - whatever onnx says of it is a fault of the node
        return clean(error)
    return ""


def _alone(node: NodeProto) -> NodeProto:
    """The node without what is checked elsewhere: graphs inside it, and the data of large constants."""
    heavy = any(proto_subgraphs(a) or _is_heavy(a.t) for a in node.attribute)
    if not heavy and node.domain != "ai.onnx":
        return node
    copy = NodeProto(
        name=node.name,
        op_type=node.op_type,
        domain="" if node.domain == "ai.onnx" else node.domain,
        input=node.input,
        output=node.output,
    )
    for attribute in node.attribute:
        light = copy.attribute.add(name=attribute.name, type=attribute.type)
        if attribute.HasField("g"):
            light.g.CopyFrom(GraphProto(name="g"))
        elif attribute.graphs:
            light.graphs.extend(GraphProto(name="g") for _ in attribute.graphs)
        elif _is_heavy(attribute.t):
            light.t.CopyFrom(emptied(attribute.t))
        else:
            light.CopyFrom(attribute)
    return copy


def _is_heavy(tensor: TensorProto) -> bool:
    return len(tensor.raw_data) > _MOST_INSIDE or tensor.data_location == TensorProto.EXTERNAL


def emptied(tensor: TensorProto) -> TensorProto:
    """A tensor of the same name and type, without data."""
    return TensorProto(name=tensor.name, dims=[0], data_type=tensor.data_type, raw_data=b"")


def _function_complaint(function: FunctionProto, proto: ModelProto) -> str:
    if not hasattr(onnx.checker, "check_function"):
        return ""
    context = _context(proto.ir_version, [*proto.opset_import, *function.opset_import])
    try:
        onnx.checker.check_function(function, context, onnx.checker.LEXICAL_SCOPE_CONTEXT)
    except Exception as error:  # noqa: BLE001 - as above
        return clean(error)
    return ""


def _context(ir_version: int, imports: Iterable[OperatorSetIdProto]) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = max(ir_version, 1)
    context.opset_imports = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}
    return context


def _in_function(scope: Scope) -> bool:
    while scope.outer is not None:
        scope = scope.outer
    return isinstance(scope.body, FunctionProto)


def _fault(node: NodeProto, text: str) -> Fault:
    return Fault("error", "checker", f"{title(node)}: {text}", _advice(text), node=named(node), source=source(node))


def _advice(text: str) -> str:
    return next((advice for key, advice in _ADVICE.items() if key in text), "mend the node as its definition says")


# IR version and opsets: known, consistent with each other and with what is used.

_FREE_WEIGHTS, _FUNCTIONS = 4, 8  # the IR versions that allow weights that are no inputs, and local functions


def version_faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
    if not proto.HasField("graph"):
        yield Fault("error", "no-graph", "the model has no graph", "export the model again")
    yield from _ir_version(proto)
    for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
        yield from _opsets(imports)
    yield from _imported(proto, scopes)
    for key, times in collections.Counter(entry.key for entry in proto.metadata_props).items():
        if times > 1:
            yield Fault("error", "duplicate-metadata", f"the metadata has '{key}' {times} times", "keep one of them")


def _ir_version(proto: ModelProto) -> Iterator[Fault]:
    version = proto.ir_version
    if version < 1:
        yield Fault("error", "ir-version", "the model states no IR version", "export the model again")
        return
    if version > onnx.IR_VERSION:
        what = f"IR version {version} is newer than the installed onnx {onnx.__version__} knows ({onnx.IR_VERSION})"
        yield Fault("error", "ir-version", what, "pip install --upgrade onnx, or save it with an older IR version")
    inputs = {value.name for value in proto.graph.input}
    loose = [tensor.name for tensor in proto.graph.initializer if tensor.name not in inputs]
    if version < _FREE_WEIGHTS and loose:
        what = f"in IR version {version} every weight must be an input too, '{loose[0]}' is not"
        yield Fault("error", "ir-version", what, f"set ir_version to {_FREE_WEIGHTS} or more", tensor=loose[0])
    if version < _FUNCTIONS and proto.functions:
        what = f"IR version {version} has no local functions, the model has {len(proto.functions)}"
        yield Fault("error", "ir-version", what, f"set ir_version to {_FUNCTIONS} or more")
    needed = onnx.helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    if version < needed and proto.opset_import:
        what = f"its opsets came with IR version {needed}, the model states {version}"
        yield Fault("warning", "ir-version", what, f"set ir_version to {needed}: strict readers refuse it")


def _opsets(imports: Iterable[OperatorSetIdProto]) -> Iterator[Fault]:
    newest, seen = newest_opsets(), dict[str, int]()
    for opset in imports:
        domain = _domain(opset.domain)
        shown = domain or "ai.onnx"
        if opset.version < 1:
            yield Fault("error", "opset", f"'{shown}' is imported with version {opset.version}", "give its version")
        elif seen.setdefault(domain, opset.version) != opset.version:
            what = f"'{shown}' is imported twice, as {seen[domain]} and {opset.version}"
            yield Fault("error", "opset", what, "keep the one its nodes were written for")
        elif opset.version > newest.get(domain, opset.version):
            what = f"opset {opset.version} of '{shown}' is newer than the installed onnx knows ({newest[domain]})"
            yield Fault("error", "opset", what, "pip install --upgrade onnx, or export for an older opset")
    if not seen:
        yield Fault("error", "opset", "no opset is imported", "add the opset its nodes were written for")


def _imported(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
    said: set[str] = set()
    for scope, node in nodes(scopes):
        outermost = scope
        while outermost.outer is not None:
            outermost = outermost.outer
        function = isinstance(outermost.body, FunctionProto)
        imports = outermost.body.opset_import if function else proto.opset_import
        domain = _domain(node.domain)
        if domain not in {_domain(o.domain) for o in imports} and (outermost.label + domain) not in said:
            said.add(outermost.label + domain)
            yield Fault(
                "error",
                "opset",
                f"{title(node)} is of the domain '{domain or 'ai.onnx'}', which is not imported",
                "add it to the opset imports",
                node=named(node),
                source=source(node),
            )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


# The data of every tensor is there, inside the folder, and as much as its shape says.


def data_faults(proto: ModelProto, folder: Path | None) -> Iterator[Fault]:
    for name, error in data_errors(proto, folder):
        rule = "unsafe-data" if isinstance(error, UnsafeFileError) else "missing-data"
        yield Fault("error", rule, f"tensor '{name}': {error.what}", error.next_step or "", tensor=name)


# Types and shapes agree: what is stated, and what follows from the operators.

_PLACE = re.compile(r"\(op_type:(?P<op>[^,)]*)(?:, node name: (?P<node>.*?))?\): ", re.DOTALL)


def inference_faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
    """onnx names every node that fails in one message; each becomes a fault."""
    by_name = {node.name: node for _, node in nodes(scopes) if node.name}
    operators = {node.op_type for _, node in nodes(scopes)}
    said: set[tuple[str, str]] = set()
    for check_type in (False, True):
        try:
            infer_shapes(proto, strict=True, check_type=check_type)
        except Exception as error:  # noqa: BLE001 - whatever inference says is a fault of the model
            for op, name, text in _parts(str(error)):
                inner = op and op not in operators  # a step of an operator that onnx defines by others: not the model's
                follows = "instead is null" in text  # of a type nobody knows: behind an operator of one's own, say
                if text and not inner and not follows and (name or op, text) not in said:
                    said.add((name or op, text))
                    yield _inference_fault(op, by_name.get(name), text)


def _parts(message: str) -> list[tuple[str, str, str]]:
    found = list(_PLACE.finditer(message))
    if not found:
        return [("", "", _plain(message))]
    ends = [m.start() for m in found[1:]] + [len(message)]
    cut = [(m["op"], m["node"] or "", message[m.end() : end]) for m, end in zip(found, ends, strict=True)]
    return [(op, node, _plain(text)) for op, node, text in cut]


def _plain(text: str) -> str:
    text = text.replace("Inference error(s):", "").strip()
    text = re.sub(r"\[\w*(?:Error|Exception)\]\s*", "", text)
    return clean(ValueError(text)) if text else ""


def _inference_fault(op: str, node: NodeProto | None, text: str) -> Fault:
    kind = "type" if re.search(r"\b[Tt]ype\b|typestr", text) else "shape"
    advice = {
        "type": "correct the stated type, or put a Cast before the node",
        "shape": "correct the stated shape, or the weight or input of this node",
    }[kind]
    whom = title(node) if node is not None else f"a node {op}" if op else "the model"
    name, line = (named(node), source(node)) if node is not None else ("", "")
    return Fault("error", kind, f"{whom}: {text}", advice, node=name, source=line)
