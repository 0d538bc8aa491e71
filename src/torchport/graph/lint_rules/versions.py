"""IR version and opsets: known, consistent with each other and with what is used."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

import onnx
from onnx import FunctionProto, ModelProto, OperatorSetIdProto

from torchport.files.validation import newest_opsets
from torchport.graph.faults import Fault
from torchport.graph.lint_rules.scopes import Scope, named, nodes, source, title

_FREE_WEIGHTS, _FUNCTIONS = 4, 8  # the IR versions that allow weights that are no inputs, and local functions


def faults(proto: ModelProto, scopes: list[Scope]) -> Iterator[Fault]:
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
