"""Rules about names: each is made once and before its use, and what no output needs is listed."""

from __future__ import annotations

import collections
import graphlib
from collections.abc import Iterator

from onnx import ModelProto, NodeProto

from torchport.errors import close_names
from torchport.inspection.lint.fault import Fault, Scope, named, nodes, source, title


def name_faults(scopes: list[Scope]) -> Iterator[Fault]:
    for scope in scopes:
        yield from _twice(scope)
        yield from _node_names(scope)
        yield from _shadowing(scope)
        yield from _missing(scope)
        yield from _order(scope)


def _twice(scope: Scope) -> Iterator[Fault]:
    made = [name for node in scope.body.node for name in node.output if name]
    groups = {"input": scope.inputs, "weight": scope.weights, "value": made}
    for kind, names in groups.items():
        for name, times in collections.Counter(names).items():
            if not name:
                yield _error("no-name", f"an {kind} has no name", "give it one", scope)
            elif times > 1:
                yield _error("duplicate-name", f"the name '{name}' is given to {times} {kind}s", _RENAME, scope, name)
    given = {*scope.inputs, *scope.weights}
    for name in dict.fromkeys(n for n in made if n in given):
        node = next(n for n in scope.body.node if name in n.output)
        what = f"{title(node)} makes '{name}', which is an input or weight already"
        yield _error("duplicate-name", what, _RENAME, scope, name, node)


_RENAME = "rename all but one, and what uses them"


def _node_names(scope: Scope) -> Iterator[Fault]:
    for name, times in collections.Counter(node.name for node in scope.body.node if node.name).items():
        if times > 1:
            yield Fault(
                "warning",
                "duplicate-node-name",
                f"{times} nodes are called '{name}'{_in(scope)}",
                "rename them: messages and tools cannot tell them apart",
                node=name,
            )


def _shadowing(scope: Scope) -> Iterator[Fault]:
    for name in scope.made:
        outer = scope.outer
        while outer is not None and name not in outer.made:
            outer = outer.outer
        if outer is not None and name:
            yield Fault(
                "warning",
                "shadowed-name",
                f"the name '{name}'{_in(scope)} hides one outside of it",
                "rename the inner one: ONNX wants names unique through all graphs",
                tensor=name,
            )


_GUESSES = 3  # how many missing names are worth the time to find close ones


def _missing(scope: Scope) -> Iterator[Fault]:
    for place, (index, name) in enumerate(scope.missing):
        node = scope.body.node[index]
        close = close_names(name, list(scope.made)[:20_000], most=1) if place < _GUESSES else []
        advice = f"did it mean '{close[0]}'?" if close else "connect it, or add the input or weight"
        what = f"{title(node)} needs '{name}', which nothing makes"
        yield _error("missing-name", what, advice, scope, name, node)
    for name in scope.outputs:
        if name not in scope.made and not _outside(scope, name):
            what = f"the output '{name}' is made by no node"
            yield _error("missing-name", what, "name a value that some node makes", scope, name)


def _outside(scope: Scope, name: str) -> bool:
    outer = scope.outer
    while outer is not None and name not in outer.made:
        outer = outer.outer
    return outer is not None


def _order(scope: Scope) -> Iterator[Fault]:
    end = len(scope.body.node)
    late = [i for i, before in scope.needs.items() if i < end and any(other >= i for other in before)]
    if not late:
        return
    try:
        graphlib.TopologicalSorter({i: list(before) for i, before in scope.needs.items()}).prepare()
    except graphlib.CycleError as error:
        circle = [scope.body.node[i] for i in reversed(error.args[1])]
        path = " → ".join(map(named, circle[:8])) + (" → …" if len(circle) > 8 else "")
        yield _error("cycle", f"nodes need each other: {path}", "break the circle", scope, node=circle[0])
        return
    node = scope.body.node[min(late)]
    what = f"{len(late)} nodes come before what they need, first {title(node)}"
    yield _error("not-sorted", what, "tp.graph.save(tp.graph.load(file), file) sorts them", scope, node=node)


def _in(scope: Scope) -> str:
    return f" in {scope.label}" if scope.label else ""


def _error(
    rule: str, message: str, advice: str, scope: Scope, tensor: str = "", node: NodeProto | None = None
) -> Fault:
    line, name = (source(node), named(node)) if node is not None else ("", "")
    return Fault("error", rule, message + _in(scope), advice, node=name, tensor=tensor, source=line)


# What is in the file and changes no answer.


def unused_faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
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
