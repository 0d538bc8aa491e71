"""What is in the file and changes no answer."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto

from torchport.graph.faults import Fault
from torchport.graph.lint_rules.scopes import Scope, named, nodes, source, title


def faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
    for scope in scopes:
        yield from _in_scope(scope)
    used = {_domain(node.domain) for _, node in nodes(scopes)}
    calls = {(_domain(node.domain), node.op_type, node.overload) for _, node in nodes(scopes)}
    for function in proto.functions:
        if (_domain(function.domain), function.name, function.overload) not in calls:
            what = f"nothing calls the function '{function.domain}::{function.name}'"
            yield Fault("warning", "unused-function", what, "remove it")
    for opset in proto.opset_import:
        if _domain(opset.domain) and _domain(opset.domain) not in used:
            what = f"no node is of the imported domain '{opset.domain}'"
            yield Fault("note", "unused-import", what, "remove the import; it does no harm")


def _in_scope(scope: Scope) -> Iterator[Fault]:
    live, end = scope.live(), len(scope.body.node)
    place = f" in {scope.label}" if scope.label else ""
    for index, node in enumerate(scope.body.node):
        if index not in live:
            yield Fault(
                "warning",
                "unused-node",
                f"no output needs {title(node)}{place}",
                "remove it",
                node=named(node),
                source=source(node),
            )
    inputs = set(scope.inputs)
    for name in dict.fromkeys(scope.weights):
        if name not in inputs and not _needed(scope, name, live, end):
            what = f"no output needs the weight '{name}'{place}"
            yield Fault("warning", "unused-weight", what, "remove it: it takes space", tensor=name)
    for name in dict.fromkeys(scope.inputs if not scope.outer else ()):
        if name and not _needed(scope, name, live, end):
            what = f"no output needs the input '{name}'{place}"
            yield Fault("warning", "unused-input", what, "remove it, or see why the model ignores it", tensor=name)


def _needed(scope: Scope, name: str, live: set[int], end: int) -> bool:
    return any(index == end or index in live for index in scope.users.get(name, ()))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
