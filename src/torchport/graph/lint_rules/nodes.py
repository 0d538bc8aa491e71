"""Each node is what the operator's definition says: its count of inputs and outputs, its attributes.

`onnx.checker` stops at the first fault of a model, so it is asked about each node by itself. Functions, whose nodes
may refer to parameters, are shown to it whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

from torchport.graph.faults import Fault
from torchport.graph.lint_rules.scopes import Scope, named, source, title
from torchport.irtools.serialization import subgraphs

_ADVICE = {
    "deprecated": "convert the model to an opset that still has it, or replace the node",
    "No Op registered": "see `torchport ops show` for the opsets that have it; an operator of your own needs a domain",
    "Unrecognized attribute": "remove the attribute, or raise the opset if it came later",
    "Required attribute": "give the attribute",
    "input size": "give the node the inputs its definition wants",
    "output size": "give the node the outputs its definition wants",
}
_MOST_INSIDE = 1024


def faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
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
    heavy = any(subgraphs(a) or _is_heavy(a.t) for a in node.attribute)
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
